"""Work over a connection that may be lost: done again and again until it is stopped, with bounded waits in between."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable

from ropewalk.core.backoff import Backoff, Chance

logger = logging.getLogger("ropewalk.broadcast")

BETWEEN_ATTEMPTS = Backoff(0.2, 5.0)


class Stopped(Exception):
    """The work is to end, and what it waits for has not come."""


class Retrying:
    """Runs `work` in a task. When it fails, `problem` says why until the work calls `works`, and it is begun anew after a wait.

    `expected`: what it fails with where the other side is down.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], Awaitable[None]],
        expected: tuple[type[Exception], ...],
        chance: Chance = random.random,
    ) -> None:
        self._name = name
        self._work = work
        self._expected = (*expected, OSError)
        self._chance = chance
        self._attempt = 0
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.problem = "it has not connected yet"

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self, seconds: float) -> None:
        """The work ends by itself within `seconds`, or is cancelled."""
        self._stopping.set()
        if self._task is None:
            return
        await asyncio.wait([self._task], timeout=seconds)
        self._task.cancel()
        await asyncio.wait([self._task])

    async def pause(self, seconds: float) -> None:
        """Raises Stopped when the work is to end meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
                raise Stopped

    def works(self) -> None:
        self._attempt = 0
        if self.problem:
            self.problem = ""
            logger.info("broadcaster %s is connected", self._name)

    def health(self) -> str:
        return f"broadcaster {self._name}: {self.problem}" if self.problem else ""

    def fails(self, error: BaseException) -> None:
        reason = str(error) or type(error).__name__
        if self.problem != reason:
            logger.warning("broadcaster %s does not work, and tries again", self._name, extra={"reason": reason})
        self.problem = reason

    def wait(self, attempt: int) -> float:
        """Seconds until the next attempt."""
        return BETWEEN_ATTEMPTS.delay(attempt, self._chance)

    async def _run(self) -> None:
        with contextlib.suppress(Stopped):
            while not self.stopping:
                try:
                    await self._work()
                except Stopped:
                    raise
                except Exception as error:  # the edge of a background task: whatever it is, publications must come in again
                    if not isinstance(error, self._expected):
                        logger.exception("broadcaster %s failed", self._name)
                    self.fails(error)
                    self._attempt += 1
                    await self.pause(self.wait(self._attempt - 1))

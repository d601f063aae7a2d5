"""Runs work over a connection, and restarts it with backoff when it fails, until it is stopped."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable

from ropewalk.core.backoff import Backoff, Chance

logger = logging.getLogger("ropewalk.broadcast")

RETRY_BACKOFF = Backoff(0.2, 5.0)


class Stopped(Exception):
    """The work was stopped during a pause."""


class Retrying:
    """Runs `work` in a task. When it fails, it is restarted after a pause.

    `problem` is the reason of the last failure until the work calls `connected`, then "".

    Args:
        expected: the errors that `work` raises when the other side is down. Others are logged with a traceback.
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
        self.problem = "not connected yet"

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self, seconds: float) -> None:
        """Let the work end within `seconds`, then cancel it."""
        self._stopping.set()
        if self._task is None:
            return
        await asyncio.wait([self._task], timeout=seconds)
        self._task.cancel()
        await asyncio.wait([self._task])

    async def pause(self, seconds: float) -> None:
        """Raises Stopped if the work is stopped meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
                raise Stopped

    def connected(self) -> None:
        self._attempt = 0
        if self.problem:
            self.problem = ""
            logger.info("broadcaster %s is connected", self._name)

    def health(self) -> str:
        return f"broadcaster {self._name}: {self.problem}" if self.problem else ""

    def failed(self, error: BaseException) -> None:
        reason = str(error) or type(error).__name__
        if self.problem != reason:
            logger.warning("broadcaster %s failed and retries", self._name, extra={"reason": reason})
        self.problem = reason

    def delay(self, attempt: int) -> float:
        """Seconds until the next attempt."""
        return RETRY_BACKOFF.delay(attempt, self._chance)

    async def _run(self) -> None:
        with contextlib.suppress(Stopped):
            while not self.stopping:
                try:
                    await self._work()
                except Stopped:
                    raise
                except Exception as error:  # the edge of a background task: any error must be followed by a retry
                    if not isinstance(error, self._expected):
                        logger.exception("unexpected error in broadcaster %s", self._name)
                    self.failed(error)
                    self._attempt += 1
                    await self.pause(self.delay(self._attempt - 1))

"""What broadcasters share: parsing of payloads, a task that is restarted after failures, and the base of those whose
publications reach every node."""

import asyncio
import contextlib
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from ropewalk.core.backoff import Backoff, Chance
from ropewalk.core.stats import Stats
from ropewalk.model.errors import ClientError, MalformedPublication, RopewalkError
from ropewalk.model.messages import Publication, RemoteDisconnect
from ropewalk.model.report import Gauges
from ropewalk.ports import Publisher
from ropewalk.protocol.publications import PublicationLimits, decode_gently

logger = logging.getLogger("ropewalk.broadcast")

WARNING_INTERVAL_SECONDS = 10.0
"""A publisher that sends invalid payloads only must not fill the log."""

RETRY_BACKOFF = Backoff(0.2, 5.0)


class Intake:
    """Parses the payloads of one broadcaster, with the limits of publishing over HTTP. Senders get no reply: an invalid payload
    is logged, counted and dropped."""

    def __init__(self, broadcaster: str, limits: PublicationLimits, stats: Stats) -> None:
        self._broadcaster = broadcaster
        self._limits = limits
        self._stats = stats
        self._next_warning = 0.0

    async def read(self, payload: bytes | None, key: str = "") -> list[Publication] | RemoteDisconnect | None:
        """Returns None for an invalid payload. `key` is the base of uids for publications without one."""
        try:
            if payload is None:
                raise MalformedPublication("the payload is missing")
            if len(payload) > self._limits.max_publish_size:
                raise MalformedPublication(f"the payload is larger than {self._limits.max_publish_size} bytes")
            return await decode_gently(payload, self._limits, key)
        except MalformedPublication as error:
            self.refuse(error, key)
            return None

    def refuse(self, error: ClientError, key: str) -> None:
        """Log and count a payload that can never be registered."""
        self._stats.publications_refused += 1
        if error.refusal is not None:
            self._stats.refusals[error.refusal] += 1
        now = time.monotonic()
        level = logging.WARNING if now >= self._next_warning else logging.DEBUG
        if level == logging.WARNING:
            self._next_warning = now + WARNING_INTERVAL_SECONDS
        logger.log(
            level,
            "invalid broadcast dropped",
            extra={"broadcaster": self._broadcaster, "entry": key, "reason": str(error)},
        )


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


class FanOutBroadcaster(ABC):
    """Implements `ports.Broadcaster` where publications reach every node: each delivers them to its own sessions. Publications
    that were sent while the connection was down are lost.

    Args:
        publisher: delivers to the sessions of this node only.
    """

    name: str
    errors: tuple[type[Exception], ...]
    """What `_listen` raises when the server cannot be reached."""

    def __init__(self, publisher: Publisher, limits: PublicationLimits, stats: Stats) -> None:
        self._publisher = publisher
        self._intake = Intake(self.name, limits, stats)
        self._retrying = Retrying(self.name, self._listen, self.errors)

    async def start(self) -> None:
        self._retrying.start()

    async def stop(self) -> None:
        await self._retrying.stop(0)

    def health(self) -> str:
        return self._retrying.health()

    def gauges(self) -> Gauges:
        return {}

    @abstractmethod
    async def _listen(self) -> None:
        """Connect, report it to `_retrying`, and pass payloads to `_receive` until the connection is lost."""

    async def _receive(self, payload: bytes) -> None:
        """A payload that fails does not affect the others."""
        try:
            match await self._intake.read(payload):
                case RemoteDisconnect() as order:
                    await self._publisher.disconnect(order)
                case list() as publications:
                    await self._publisher.publish(publications)
        except RopewalkError as error:
            logger.warning("a broadcast failed", extra={"broadcaster": self.name, "reason": str(error)})

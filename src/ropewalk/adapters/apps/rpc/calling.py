"""How the application is called: so many at once, within a budget of time, and again where that is worth it.

The rule it keeps: from the first wait to the last attempt no call takes longer than its budget, and a call between two attempts
keeps nobody else from theirs.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import ClassVar, TypeVar

from ropewalk.adapters.apps.rpc.reach import Reach
from ropewalk.core.stats import Stats
from ropewalk.model.errors import ApplicationError, Unavailable
from ropewalk.ports import Clock

T = TypeVar("T")

Attempt = Callable[[float], Awaitable[T]]
"""Asks once and ends within the seconds it is given. Raises `ApplicationError`, or `Unavailable`, or of that an `AskAgain`."""

Sleep = Callable[[float], Awaitable[object]]

Chance = Callable[[], float]
"""A number from 0 up to 1, like `random.random`."""

WAITING_LIMIT = 10_000

JITTER = 0.2
"""The part of a pause that is left to chance, so that callers who failed together do not come back together."""


class AskAgain(Unavailable):
    """Worth another attempt after a pause, which doubles each time."""

    pause: ClassVar[float]


class Unreachable(AskAgain):
    """There is no connection, or it was lost."""

    pause = 0.1


class Busy(AskAgain):
    """It is there and takes no more calls just now."""

    pause = 0.01


class _Crowded(Unavailable):
    """We did not come to ask: this says nothing of the application."""


class Calls:
    """`command_timeout` is the budget of a call; `request_timeout` bounds one attempt, where 0 is no bound of its own."""

    def __init__(
        self,
        stats: Stats,
        *,
        concurrency: int = 28,
        command_timeout: float = 3.0,
        request_timeout: float = 0.0,
        waiting_limit: int = WAITING_LIMIT,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        chance: Chance = random.random,
    ) -> None:
        self._stats = stats
        self._places = asyncio.Semaphore(concurrency)
        self._command_timeout = command_timeout
        self._request_timeout = request_timeout or command_timeout
        self._waiting_limit = waiting_limit
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        self._reach = Reach(clock)
        self._under_way = 0
        self._active = 0

    async def make(self, attempt: Attempt[T]) -> T:
        """Raises `Unavailable` or `ApplicationError`."""
        with self._counted():
            if self._waiting() > self._waiting_limit:
                raise _Crowded("too many calls wait for the application already")
            return await self._until_answered(attempt, self._clock() + self._command_timeout)

    def trouble(self) -> str:
        return self._reach.trouble()

    def gauges(self) -> dict[str, float]:
        return {"app_calls_active": float(self._active), "app_calls_waiting": float(self._waiting())}

    def _waiting(self) -> int:
        """For a place, or for the next attempt."""
        return self._under_way - self._active

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._stats.app_calls += 1
        self._under_way += 1
        try:
            yield
        except (ApplicationError, Unavailable) as error:
            self._stats.app_calls_failed += 1
            self._judge(error)
            raise
        else:
            self._reach.answered()
        finally:
            self._under_way -= 1

    def _judge(self, error: ApplicationError | Unavailable) -> None:
        match error:
            case ApplicationError():
                self._reach.answered()
            case _Crowded():
                pass
            case _:
                self._reach.missed(str(error))

    async def _until_answered(self, attempt: Attempt[T], deadline: float) -> T:
        failures: Counter[type[AskAgain]] = Counter()
        while True:
            try:
                return await self._ask(attempt, deadline)
            except AskAgain as error:
                pause = error.pause * 2.0 ** failures[type(error)] * (1 + JITTER * self._chance())
                if pause >= deadline - self._clock():
                    raise
                failures[type(error)] += 1
            self._stats.app_calls_retried += 1
            await self._sleep(pause)

    async def _ask(self, attempt: Attempt[T], deadline: float) -> T:
        async with self._place(deadline):
            left = deadline - self._clock()
            if left <= 0:
                raise _Crowded("the time for the call was over when its turn came")
            return await attempt(min(left, self._request_timeout))

    @asynccontextmanager
    async def _place(self, deadline: float) -> AsyncIterator[None]:
        await self._take_place(deadline)
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            self._places.release()

    async def _take_place(self, deadline: float) -> None:
        if not self._places.locked():
            await self._places.acquire()
            return
        try:
            async with within(deadline - self._clock(), self._sleep):
                await self._places.acquire()
        except TimeoutError:
            raise _Crowded("the call's turn did not come in time: the application is busy with others") from None


@asynccontextmanager
async def within(seconds: float, sleep: Sleep) -> AsyncIterator[None]:
    """Like `asyncio.timeout`, by a sleep that is passed in."""
    async with asyncio.timeout(None) as limit:

        def ring(alarm: "asyncio.Future[object]") -> None:
            # It may ring just after what it was set for is done; then there is nothing left to reschedule.
            with suppress(RuntimeError):
                if not alarm.cancelled():
                    limit.reschedule(0)

        alarm = asyncio.ensure_future(sleep(seconds))
        alarm.add_done_callback(ring)
        try:
            yield
        finally:
            alarm.cancel()

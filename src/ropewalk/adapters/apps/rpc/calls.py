"""How the application is called: so many at once, within a budget of time, and again where that is worth it.

Invariant: a call's budget begins when the call does. Waiting for a slot has a bound of its own, and a call between two
attempts holds no slot.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, TypeVar

from ropewalk.adapters.apps.rpc.reachability import Reachability
from ropewalk.adapters.apps.slots import QUEUE_LIMIT, NoSlot, Sleep, Slots, StillWanted, always
from ropewalk.core.backoff import Backoff, Chance
from ropewalk.core.stats import Stats
from ropewalk.model.errors import ApplicationError, Unavailable
from ropewalk.model.limits import APP_LIMITS
from ropewalk.ports import Clock

T = TypeVar("T")

AttemptFunction = Callable[[float], Awaitable[T]]
"""Asks once and ends within the seconds it is given. Raises `ApplicationError`, or `Unavailable`, or of that an `AskAgain`."""


class AskAgain(Unavailable):
    """Worth another attempt after a pause, which doubles each time."""

    pause: ClassVar[float]


class ApplicationUnreachable(AskAgain):
    """There is no connection, or it was lost."""

    pause = 0.1


class Busy(AskAgain):
    """It is there and takes no more calls just now."""

    pause = 0.01


class Calls:
    """`command_timeout` is the budget of a call, counted from when it has a slot: its attempts and the pauses between them, not
    the time it waits for a slot. `request_timeout` bounds one attempt, where 0 is no bound of its own. `wait_timeout` bounds
    the waiting; while the application does not answer, nobody waits for longer than the budget.
    """

    def __init__(
        self,
        stats: Stats,
        *,
        concurrency: int = APP_LIMITS.concurrency,
        command_timeout: float = APP_LIMITS.command_timeout,
        request_timeout: float = 0.0,
        wait_timeout: float = APP_LIMITS.wait_timeout,
        queue_limit: int = QUEUE_LIMIT,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        chance: Chance = random.random,
    ) -> None:
        self._stats = stats
        self._command_timeout = command_timeout
        self._request_timeout = request_timeout or command_timeout
        self._wait_timeout = wait_timeout
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        self._reach = Reachability(clock)
        self._slots = Slots(concurrency, stats, max_wait=self._max_wait, clock=clock, sleep=sleep, queue_limit=queue_limit)
        self._under_way = 0

    async def make(self, attempt: AttemptFunction[T], wanted: StillWanted = always) -> T:
        """Raises `Unavailable` or `ApplicationError`."""
        with self._counted():
            return await self._until_answered(attempt, wanted)

    def health(self) -> str:
        return self._reach.health()

    def gauges(self) -> dict[str, float]:
        """What waits, waits for a slot or for the next attempt."""
        active = self._slots.active
        return {"app_calls_active": float(active), "app_calls_waiting": float(self._under_way - active)}

    def _max_wait(self) -> float:
        return min(self._wait_timeout, self._command_timeout) if self._reach.health() else self._wait_timeout

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
            case NoSlot():
                pass
            case _:
                self._reach.missed(str(error))
                self._slots.recheck()

    async def _until_answered(self, attempt: AttemptFunction[T], wanted: StillWanted) -> T:
        failures: Counter[type[AskAgain]] = Counter()
        left, waited = self._command_timeout, 0.0
        while True:
            waited += await self._take_slot(wanted)
            began = self._clock()
            try:
                return await self._in_slot(attempt, min(left, self._request_timeout))
            except AskAgain as error:
                left -= self._clock() - began
                pause = self._pause(error, failures[type(error)], left)
                if pause >= left or waited > self._max_wait():  # the waiting before all attempts together is bounded too
                    raise
                failures[type(error)] += 1
            self._stats.app_calls_retried += 1
            await self._sleep(pause)
            left -= pause

    def _pause(self, error: AskAgain, failures: int, left: float) -> float:
        """Doubles each time, but never so that it would leave the rest of the budget unused."""
        return Backoff(error.pause, max(error.pause, left / 2)).delay(failures, self._chance)

    async def _take_slot(self, wanted: StillWanted) -> float:
        """How long it took. Raises NoSlot."""
        began = self._clock()
        await self._slots.acquire(wanted)
        return self._clock() - began

    async def _in_slot(self, attempt: AttemptFunction[T], seconds: float) -> T:
        try:
            return await attempt(seconds)
        finally:
            self._slots.release()

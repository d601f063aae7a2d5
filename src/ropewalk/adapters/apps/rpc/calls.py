"""Calls to an application behind RPC: limits concurrency, applies timeouts, retries, and tracks whether it responds.

Invariant: a call's timeout starts when it has a slot. Waiting for a slot has a timeout of its own, and a call between two
attempts holds no slot.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, TypeVar

from ropewalk.adapters.apps.slots import NoSlot, Sleep, Slots, StillWanted, always
from ropewalk.core.backoff import Backoff, Chance
from ropewalk.core.stats import Stats
from ropewalk.model.errors import ApplicationError, Unavailable
from ropewalk.model.limits import APP_LIMITS, AppLimits
from ropewalk.ports import Clock

log = logging.getLogger("ropewalk.application")

T = TypeVar("T")

AttemptFunction = Callable[[float], Awaitable[T]]
"""Makes one attempt within the given seconds. Raises `ApplicationError` or `Unavailable`; `Retryable` for another attempt."""

UNHEALTHY_CALLS = 3
"""Calls without a response, in a row, after which the application counts as unhealthy."""

UNHEALTHY_SECONDS = 30.0
"""After which such calls no longer count. A load balancer that removes an unhealthy server would otherwise never send the call
that shows that the application is back."""


class Retryable(Unavailable):
    """The call is retried after a pause, which doubles each time."""

    pause: ClassVar[float]


class ApplicationUnreachable(Retryable):
    """There is no connection, or it was lost."""

    pause = 0.1


class Busy(Retryable):
    """The application takes no more calls at the moment."""

    pause = 0.01


class Calls:
    """Makes the calls to an application, within `limits`.

    While the application does not respond, a call waits for a slot no longer than its own timeout.
    """

    def __init__(
        self,
        stats: Stats,
        limits: AppLimits = APP_LIMITS,
        *,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        chance: Chance = random.random,
    ) -> None:
        self._stats = stats
        self._command_timeout = limits.command_timeout
        self._request_timeout = limits.request_timeout or limits.command_timeout
        self._wait_timeout = limits.wait_timeout
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        self._reach = _Reachability(clock)
        self._slots = Slots(
            limits.concurrency, stats, max_wait=self._max_wait, clock=clock, sleep=sleep, queue_limit=limits.queue
        )
        self._in_progress = 0

    async def make(self, attempt: AttemptFunction[T], wanted: StillWanted = always) -> T:
        """Raises `Unavailable` or `ApplicationError`."""
        with self._counted():
            return await self._retry(attempt, wanted)

    def health(self) -> str:
        return self._reach.health()

    def gauges(self) -> dict[str, float]:
        """Waiting calls are those that wait for a slot or for their next attempt."""
        active = self._slots.active
        return {"app_calls_active": float(active), "app_calls_waiting": float(self._in_progress - active)}

    def _max_wait(self) -> float:
        return min(self._wait_timeout, self._command_timeout) if self._reach.health() else self._wait_timeout

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._stats.app_calls += 1
        self._in_progress += 1
        try:
            yield
        except (ApplicationError, Unavailable) as error:
            self._stats.app_calls_failed += 1
            self._record_failure(error)
            raise
        else:
            self._reach.responded()
        finally:
            self._in_progress -= 1

    def _record_failure(self, error: ApplicationError | Unavailable) -> None:
        match error:
            case ApplicationError():
                self._reach.responded()
            case NoSlot():
                pass
            case _:
                self._reach.missed(str(error))
                self._slots.recheck()

    async def _retry(self, attempt: AttemptFunction[T], wanted: StillWanted) -> T:
        failures: Counter[type[Retryable]] = Counter()
        left, waited = self._command_timeout, 0.0
        while True:
            waited += await self._take_slot(wanted)
            began = self._clock()
            try:
                return await self._in_slot(attempt, min(left, self._request_timeout))
            except Retryable as error:
                left -= self._clock() - began
                pause = self._pause(error, failures[type(error)], left)
                if pause >= left or waited > self._max_wait():  # the total wait for slots is limited too
                    raise
                failures[type(error)] += 1
            self._stats.app_calls_retried += 1
            await self._sleep(pause)
            left -= pause

    def _pause(self, error: Retryable, failures: int, left: float) -> float:
        """Doubles each time, up to half of the time left, so that another attempt fits."""
        return Backoff(error.pause, max(error.pause, left / 2)).delay(failures, self._chance)

    async def _take_slot(self, wanted: StillWanted) -> float:
        """Returns how many seconds it took. Raises NoSlot."""
        began = self._clock()
        await self._slots.acquire(wanted)
        return self._clock() - began

    async def _in_slot(self, attempt: AttemptFunction[T], seconds: float) -> T:
        try:
            return await attempt(seconds)
        finally:
            self._slots.release()


class _Reachability:
    """Whether the application responds, judged by recent calls. Logs a change once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._misses = 0
        self._missed_at = 0.0

    def responded(self) -> None:
        """Any response counts, also an error."""
        if self._misses >= UNHEALTHY_CALLS:
            log.info("the application responds again")
        self._misses = 0

    def missed(self, why: str) -> None:
        self._misses += 1
        self._missed_at = self._clock()
        if self._misses == UNHEALTHY_CALLS:
            log.warning("the application does not respond", extra={"why": why})

    def health(self) -> str:
        if self._misses < UNHEALTHY_CALLS or self._clock() - self._missed_at > UNHEALTHY_SECONDS:
            return ""
        return "the application does not respond"  # without the reason, which is logged: the health page is public

"""Limits how many calls to the application run at once. The others wait in a queue that is bounded in length and in time.

A call that times out in the queue was never made, so it does not count against the application's health.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ropewalk.core.stats import Stats
from ropewalk.model.errors import Unavailable
from ropewalk.model.limits import APP_LIMITS
from ropewalk.model.refusals import Refusal
from ropewalk.ports import Clock

logger = logging.getLogger("ropewalk.application")

Sleep = Callable[[float], Awaitable[object]]

StillWanted = Callable[[], bool]
"""Whether a call that has waited for its turn should still be made."""


def always() -> bool:
    return True


class NoSlot(Unavailable):
    """The call was not made: the queue is full, the call waited too long, or its caller is gone."""


@dataclass(slots=True)
class _Waiter:
    since: float
    future: "asyncio.Future[None]"


class Slots:
    """A semaphore of `size` with a first-in, first-out queue. Used from one event loop.

    One timer serves the whole queue, because the oldest waiter always times out first.

    Args:
        max_wait: returns how many seconds a call may wait. Call `recheck` when it has become shorter.
        queue_limit: how many calls may wait.
    """

    def __init__(
        self,
        size: int,
        stats: Stats,
        *,
        max_wait: Callable[[], float],
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
        queue_limit: int = APP_LIMITS.queue,
    ) -> None:
        self.size = size
        self.active = 0
        self.waiting = 0
        self._stats = stats
        self._max_wait = max_wait
        self._clock = clock
        self._sleep = sleep
        self._queue_limit = queue_limit
        self._queue: deque[_Waiter] = deque()
        self._timer: asyncio.Future[object] | None = None

    async def acquire(self, wanted: StillWanted = always) -> None:
        """Raises NoSlot, also if the call is no longer `wanted` when its turn comes. Otherwise the caller must `release`."""
        if self.active < self.size:
            self.active += 1
            return
        if self.waiting >= self._queue_limit:
            raise self._refused(f"the queue for the application is full ({self._queue_limit} calls)")
        waiter = _Waiter(self._clock(), asyncio.get_running_loop().create_future())
        self._queue.append(waiter)
        self.waiting += 1
        self._start_timer()
        try:
            await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
                self.release()  # the slot came in the same tick
            raise
        finally:
            self.waiting -= 1
            if not self.waiting:
                self._queue.clear()
                self._stop_timer()
        if not wanted():
            self.release()
            raise NoSlot("the caller is gone")

    def release(self) -> None:
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.future.done():
                waiter.future.set_result(None)
                return
        self.active -= 1

    def recheck(self) -> None:
        """Refuse all calls that have waited for longer than `max_wait`."""
        self._stop_timer()
        oldest = self._clock() - self._max_wait()
        while self._queue and (self._queue[0].future.done() or self._queue[0].since <= oldest):
            waiter = self._queue.popleft()
            if not waiter.future.done():
                waiter.future.set_exception(self._refused("timeout in the queue: the application was busy with other calls"))
        self._start_timer()

    def _refused(self, reason: str) -> NoSlot:
        self._stats.refusals[Refusal.APP_QUEUE] += 1
        logger.debug("call to the application not made", extra={"reason": reason})
        return NoSlot(reason)

    def _start_timer(self) -> None:
        if self._timer is None and self._queue:
            left = self._queue[0].since + self._max_wait() - self._clock()
            self._timer = asyncio.ensure_future(self._sleep(max(left, 0.0)))
            self._timer.add_done_callback(self._timer_done)

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _timer_done(self, timer: "asyncio.Future[object]") -> None:
        if timer is self._timer:
            self.recheck()

"""How many calls to the application run at once. The others wait in a queue that is bounded in length and in time.

Waiting here says nothing about the application: a call that was never made is no call that was not answered.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ropewalk.core.stats import Stats
from ropewalk.model.errors import Unavailable
from ropewalk.model.refusals import Refusal
from ropewalk.ports import Clock

logger = logging.getLogger("ropewalk.application")

Sleep = Callable[[float], Awaitable[object]]

StillWanted = Callable[[], bool]
"""Whether a call that has waited for its turn should still be made."""

QUEUE_LIMIT = 10_000


def always() -> bool:
    return True


class NoSlot(Unavailable):
    """The application was not asked: too many calls wait already, or this one has waited for too long or in vain."""


@dataclass(slots=True)
class _Waiter:
    since: float
    future: "asyncio.Future[None]"


class Slots:
    """A semaphore of `size` with a first-in, first-out queue. Used from one event loop.

    `max_wait()` is how many seconds a call may wait. It is the same for all of them and may change: call `recheck` when it has
    become shorter. One timer serves the whole queue, because the oldest waiter is always the first to run out of time.
    """

    def __init__(
        self,
        size: int,
        stats: Stats,
        *,
        max_wait: Callable[[], float],
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
        queue_limit: int = QUEUE_LIMIT,
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
        """Raises NoSlot, also where the call is no longer `wanted` when its turn comes. Else the caller must `release`."""
        if self.active < self.size:
            self.active += 1
            return
        if self.waiting >= self._queue_limit:
            raise self._refused(f"{self._queue_limit} calls wait for the application already")
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
            raise NoSlot("nobody waits for the answer any more")

    def release(self) -> None:
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.future.done():
                waiter.future.set_result(None)
                return
        self.active -= 1

    def recheck(self) -> None:
        """Refuse everyone who has waited for longer than `max_wait` allows now."""
        self._stop_timer()
        oldest = self._clock() - self._max_wait()
        while self._queue and (self._queue[0].future.done() or self._queue[0].since <= oldest):
            waiter = self._queue.popleft()
            if not waiter.future.done():
                waiter.future.set_exception(self._refused("the application was busy with other calls for too long"))
        self._start_timer()

    def _refused(self, reason: str) -> NoSlot:
        self._stats.refusals[Refusal.APP_QUEUE] += 1
        logger.debug("a call to the application was not made", extra={"reason": reason})
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

"""Timeouts for incomplete input: HTTP heads, and frames over TCP.

All have the same duration, so one timer, set for the first of them, is enough.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from ropewalk.protocol.broky.read_ahead import ReadAhead

MESSAGE_SECONDS = 30.0
"""Seconds from the first to the last byte of a client's message. The received part is kept in memory meanwhile."""


class AwaitedHead(Protocol):
    def time_out(self) -> None: ...


class HeadTimeouts:
    """Calls `time_out` if `end` does not follow `begin` within `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[AwaitedHead, float] = {}  # in the order of their deadlines
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # cached

    def begin(self, waiting: AwaitedHead) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._until[waiting] = until = self._loop.time() + self._seconds
        if self._timer is None:
            self._timer = self._loop.call_at(until, self._look)

    def end(self, waiting: AwaitedHead) -> None:
        """Harmless for one that never began."""
        self._until.pop(waiting, None)

    def _look(self) -> None:
        """The timer may belong to an entry that has ended since. Set the next one for the current first entry."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        late = [waiting for waiting, until in self._until.items() if until <= now]
        for waiting in late:
            self.end(waiting)
            waiting.time_out()
        first = next(iter(self._until.values()), None)
        self._timer = None if first is None else loop.call_at(first, self._look)


class UnfinishedFrames(HeadTimeouts):
    """Timeouts of incomplete frames. They also end early, the oldest first, if all together hold more than `limit` bytes."""

    def __init__(self, seconds: float, limit: int) -> None:
        super().__init__(seconds)
        self._limit = limit
        self._bytes = 0
        self._ending = False

    def hold(self, more: int) -> None:
        """A frame holds so many bytes more than before."""
        self._bytes += more
        if more > 0 and self._bytes > self._limit and not self._ending:
            oldest = next(iter(self._until))
            self._ending = True  # a frame that is not late for its own fault begins again
            self.end(oldest)
            oldest.time_out()
            self._ending = False


class FrameWatch:
    """Calls `late` for a frame that stays incomplete for too long. Call `look` whenever frames were handled."""

    __slots__ = ("_bytes", "_held", "_late", "_timeouts", "_unhandled")

    def __init__(self, timeouts: UnfinishedFrames, unhandled: ReadAhead, late: Callable[[], None]) -> None:
        self._timeouts = timeouts
        self._unhandled = unhandled
        self._late = late
        self._held: bytearray | None = None
        self._bytes = 0

    def look(self) -> None:
        """Each frame has its own timeout."""
        held = self._unhandled.unfinished
        if held is not self._held:
            self.end()
            if held is not None:
                self._held = held
                self._timeouts.begin(self)
        if held is not None:
            more, self._bytes = len(held) - self._bytes, len(held)
            self._timeouts.hold(more)

    def end(self) -> None:
        if self._held is not None:
            self._held = None
            self._timeouts.end(self)
            self._timeouts.hold(-self._bytes)
            self._bytes = 0

    def time_out(self) -> None:
        self.end()
        self._late()

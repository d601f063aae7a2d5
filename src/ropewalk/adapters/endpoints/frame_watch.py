"""Watches whether a frame over TCP that has begun is complete in time. The received part is kept in memory meanwhile."""

from collections.abc import Callable

from ropewalk.adapters.endpoints.head_timeouts import HeadTimeouts
from ropewalk.protocol.broky.read_ahead import ReadAhead


class FrameWatch:
    """Call `look` after frames were handled. `late` is called for a frame that has been unfinished for too long."""

    __slots__ = ("_held", "_late", "_timeouts", "_unhandled")

    def __init__(self, timeouts: HeadTimeouts, unhandled: ReadAhead, late: Callable[[], None]) -> None:
        self._timeouts = timeouts
        self._unhandled = unhandled
        self._late = late
        self._held: bytearray | None = None

    def look(self) -> None:
        """Each frame has its own time."""
        held = self._unhandled.unfinished
        if held is not self._held:
            self.end()
            if held is not None:
                self._held = held
                self._timeouts.begin(self)

    def end(self) -> None:
        if self._held is not None:
            self._held = None
            self._timeouts.end(self)

    def time_out(self) -> None:
        self._held = None
        self._late()

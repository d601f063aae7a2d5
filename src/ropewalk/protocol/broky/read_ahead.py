"""The input of a connection that is read but not handled. Frames are split off one at a time, on request.

So a large read costs nothing until it is handled, and can be handled in any number of steps.
"""

from collections import deque

from ropewalk.protocol.broky.splitter import FrameSplitter

SMALL = 4096
"""The next piece is appended to a piece below this size, so that many small pieces do not waste memory."""


class ReadAhead:
    """`size`: pending bytes, without the beginning of an incomplete frame. Unusable after an error."""

    __slots__ = ("_following", "_splitter", "at", "data", "size")

    def __init__(self, limit: int) -> None:
        self._splitter = FrameSplitter(limit)
        self._following: deque[tuple[bytes, int]] = deque()  # pieces and offsets into them
        self.data = b""
        self.at = 0
        self.size = 0

    @property
    def limit(self) -> int:
        """Maximum frame size, for all frames not split off yet."""
        return self._splitter.limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._splitter.limit = limit

    @property
    def empty(self) -> bool:
        """There is no input, not even the beginning of a frame."""
        return not self.size and not self._splitter.holds

    @property
    def unfinished(self) -> bytearray | None:
        """The beginning of an incomplete frame: one object for each frame."""
        return self._splitter.unfinished

    def put(self, data: bytes) -> None:
        if not self.size:
            self.data, self.at = data, 0
        elif self._following and len(self._following[-1][0]) < SMALL:
            piece, at = self._following.pop()
            self._following.append((piece + data, at))
        else:
            self._following.append((data, 0))
        self.size += len(data)

    def frame(self) -> bytes:
        """The next frame, which stays until `pass_by`; b"" if none is complete. Raises MalformedFrame at every call."""
        stop = self.end()
        return self.data[self.at : stop] if stop else b""

    def end(self) -> int:
        """The end in `data` of the next frame, which begins at `at`; 0 if none is complete. Raises as `frame` does."""
        while self.size:
            if self._splitter.holds:
                self._complete()
            elif stop := self._splitter.find_end(self.data, self.at):
                return stop
            else:
                self._splitter.hold(self.data, self.at)
                self.pass_by(len(self.data) - self.at)
        return 0

    def _complete(self) -> None:
        """Make the frame in pieces the next one, once it is complete."""
        frame, stop = self._splitter.complete(self.data)
        self.pass_by(stop)
        if frame:
            if self.size:
                self._following.appendleft((self.data, self.at))
            self.data, self.at = frame, 0
            self.size += len(frame)

    def pass_by(self, count: int) -> None:
        """Drop `count` handled bytes of `data`."""
        self.size -= count
        self.at += count
        if self.at == len(self.data):
            self.data, self.at = self._following.popleft() if self._following else (b"", 0)

    def clear(self) -> None:
        self._following.clear()
        self._splitter.clear()
        self.data, self.at, self.size = b"", 0, 0

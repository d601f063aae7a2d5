"""What was read of a connection and not handled yet. Frames are cut out of it one at a time, when somebody asks for the next.

So however much one read has brought, taking it costs nothing until it is handled, and it can be handled in as many steps as
one likes.
"""

from collections import deque

from ropewalk.protocol.broky.splitter import FrameSplitter

SMALL = 4096
"""Bytes of a piece to which the next one is joined, so that many small pieces do not take many times their size."""


class ReadAhead:
    """`size`: the bytes that are there, without the beginning of a frame whose rest has not come. After an error it is of no
    more use."""

    __slots__ = ("_following", "_splitter", "at", "data", "size")

    def __init__(self, limit: int) -> None:
        self._splitter = FrameSplitter(limit)
        self._following: deque[tuple[bytes, int]] = deque()  # pieces, and where in them it goes on
        self.data = b""
        self.at = 0
        self.size = 0

    @property
    def limit(self) -> int:
        """Of the size of a frame. It counts for all that were not cut out yet."""
        return self._splitter.limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._splitter.limit = limit

    @property
    def empty(self) -> bool:
        """Not even the beginning of a frame is there."""
        return not self.size and not self._splitter.holds

    @property
    def unfinished(self) -> bytearray | None:
        """What has come of a frame whose end has not: one object for each frame."""
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
        """The next frame, which stays until it is passed by; b"" if none is whole. Raises MalformedFrame, again and again."""
        stop = self.end()
        return self.data[self.at : stop] if stop else b""

    def end(self) -> int:
        """Where in `data` the next frame ends, which begins `at`; 0 if none is whole. Behind it more may follow that is not
        looked at. Raises as above."""
        while self.size:
            if self._splitter.holds:
                self._complete()
            elif stop := self._splitter.end_of(self.data, self.at):
                return stop
            else:
                self._splitter.hold(self.data, self.at)
                self.pass_by(len(self.data) - self.at)
        return 0

    def _complete(self) -> None:
        """The frame that is in pieces, if its end has come, is what comes next."""
        frame, stop = self._splitter.complete(self.data)
        self.pass_by(stop)
        if frame:
            if self.size:
                self._following.appendleft((self.data, self.at))
            self.data, self.at = frame, 0
            self.size += len(frame)

    def pass_by(self, count: int) -> None:
        """So many bytes of `data` are done with."""
        self.size -= count
        self.at += count
        if self.at == len(self.data):
            self.data, self.at = self._following.popleft() if self._following else (b"", 0)

    def clear(self) -> None:
        self._following.clear()
        self.data, self.at, self.size = b"", 0, 0

"""Cuts a byte stream into frames. What a size says is checked before anything is kept for it."""

from collections.abc import Iterator

from ropewalk.model.errors import MalformedFrame
from ropewalk.model.refusals import Refusal
from ropewalk.protocol.broky.tables import SMALLEST, malformed

MAX_FRAME = 4 * 1024 * 1024
"""Bytes of a frame without its size."""

_SIZE = 4


class FrameSplitter:
    """`limit` may be changed at any time. After an error it is of no more use."""

    __slots__ = ("_held", "_wanted", "limit")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._held = bytearray()  # the beginning of a frame; in one piece, however small the pieces are that come
        self._wanted = _SIZE  # how much of it must be there before it is worth a look

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The frames that are whole now, with their sizes. Raises MalformedFrame after those that were whole before the error.

        Take all of them before the next call."""
        if self._held:
            self._held += data
            if len(self._held) < self._wanted:
                return
            data = bytes(self._held)
            self._held = bytearray()
        start = 0
        self._wanted = _SIZE
        while len(data) - start >= _SIZE:
            size = self._checked_size(data, start)
            if len(data) - start < size:
                self._wanted = size
                break
            yield data[start : start + size]  # the same object where it is all of it
            start += size
        if start < len(data):
            self._held += data[start:]

    def _checked_size(self, data: bytes, start: int) -> int:
        size = int.from_bytes(data[start : start + _SIZE], "little")
        if size > self.limit:
            raise MalformedFrame(f"a frame of more than {self.limit} bytes", 1009, Refusal.MESSAGE_TOO_BIG)
        if size < SMALLEST - _SIZE:
            raise malformed("a frame that is too short for any")
        return size + _SIZE

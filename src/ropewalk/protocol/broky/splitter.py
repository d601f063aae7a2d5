"""Cuts a byte stream into frames. What a size says is checked before anything is kept for it.

What comes is copied once: whole frames are cut out of it where they are, and only one that is in pieces is put together.
"""

from collections.abc import Iterator

from ropewalk.model.errors import MalformedFrame
from ropewalk.model.refusals import Refusal
from ropewalk.protocol.broky.tables import SMALLEST, malformed

MAX_FRAME = 4 * 1024 * 1024
"""Bytes of a frame without its size."""

_SIZE = 4


class FrameSplitter:
    """`limit` may be changed at any time. After an error it is of no more use."""

    __slots__ = ("_held", "limit")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._held = bytearray()  # the beginning of a frame; in one piece, however small the pieces are that come

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The frames that are whole now, with their sizes. Raises MalformedFrame after those that were whole before the error.

        Take all of them before the next call."""
        frame, start = self.complete(data)
        if frame:
            yield frame
        yield from self.cut(data, start)

    def complete(self, data: bytes) -> tuple[bytes, int]:
        """The frame whose beginning is held, once it is whole; b"" if it is not, or nothing is held. And where in `data` it
        ends. Raises MalformedFrame."""
        held = self._held
        if not held:
            return b"", 0
        start = 0
        if len(held) < _SIZE:
            start = _SIZE - len(held)
            held += data[:start]
            if len(held) < _SIZE:
                return b"", len(data)
        missing = self._checked_size(held, 0) - len(held)
        held += data[start : start + missing] if missing < len(data) else data[start:]
        start += missing
        if start > len(data):
            return b"", len(data)
        self._held = bytearray()
        return bytes(held), start

    def cut(self, data: bytes, start: int) -> Iterator[bytes]:
        """The frames that are whole in `data` from there on, where nothing is held of one before. What is left is held."""
        while stop := self.end_of(data, start):
            yield data[start:stop]  # the same object where it is all of it
            start = stop
        self.hold(data, start)

    def end_of(self, data: bytes, start: int) -> int:
        """Where the frame that begins there ends; 0 if it is not whole. Raises MalformedFrame."""
        if len(data) - start < _SIZE:
            return 0
        stop = start + self._checked_size(data, start)
        return stop if stop <= len(data) else 0

    @property
    def holds(self) -> bool:
        return bool(self._held)

    @property
    def unfinished(self) -> bytearray | None:
        """The beginning of a frame whose end has not come: one object for each frame."""
        return self._held or None

    def hold(self, data: bytes, start: int) -> None:
        """The beginning of a frame is there, up to the end of `data`."""
        if start < len(data):
            self._held += data[start:]

    def _checked_size(self, data: bytes | bytearray, start: int) -> int:
        size = int.from_bytes(data[start : start + _SIZE], "little")
        if size > self.limit:
            raise MalformedFrame(f"a frame of more than {self.limit} bytes", 1009, Refusal.MESSAGE_TOO_BIG)
        if size < SMALLEST - _SIZE:
            raise malformed("a frame that is too short for any")
        return size + _SIZE

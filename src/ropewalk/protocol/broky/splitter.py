"""Splits a byte stream into frames. The size of a frame is checked before any of it is buffered.

Input is copied once: complete frames are sliced from it, and only a frame in pieces is assembled.
"""

from collections.abc import Iterator

from ropewalk.model.errors import MalformedFrame
from ropewalk.model.refusals import Refusal
from ropewalk.protocol.broky.tables import MIN_FRAME_BYTES, malformed

MAX_FRAME = 4 * 1024 * 1024
"""Maximum size of a frame, without its size field."""

_SIZE = 4


class FrameSplitter:
    """`limit` may be changed at any time. Unusable after an error."""

    __slots__ = ("_held", "limit")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._held = bytearray()  # the beginning of a frame, in one piece

    def feed(self, data: bytes) -> Iterator[bytes]:
        """All complete frames, with their size fields. Raises MalformedFrame after the complete frames before the error.

        Exhaust the iterator before the next call."""
        frame, start = self.complete(data)
        if frame:
            yield frame
        yield from self.cut(data, start)

    def complete(self, data: bytes) -> tuple[bytes, int]:
        """The held frame once it is complete, else b"", and its end in `data`. Raises MalformedFrame."""
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
        """The complete frames in `data` from `start` on, if no frame is held. The rest is held."""
        while stop := self.find_end(data, start):
            yield data[start:stop]  # no copy if it is all of `data`
            start = stop
        self.hold(data, start)

    def find_end(self, data: bytes, start: int) -> int:
        """The end of the frame at `start`; 0 if it is incomplete. Raises MalformedFrame."""
        if len(data) - start < _SIZE:
            return 0
        stop = start + self._checked_size(data, start)
        return stop if stop <= len(data) else 0

    @property
    def holds(self) -> bool:
        return bool(self._held)

    @property
    def unfinished(self) -> bytearray | None:
        """The beginning of an incomplete frame: one object for each frame."""
        return self._held or None

    def clear(self) -> None:
        self._held = bytearray()

    def hold(self, data: bytes, start: int) -> None:
        """Keep the beginning of a frame, up to the end of `data`."""
        if start < len(data):
            self._held += data[start:]

    def _checked_size(self, data: bytes | bytearray, start: int) -> int:
        size = int.from_bytes(data[start : start + _SIZE], "little")
        if size > self.limit:
            raise MalformedFrame(f"a frame of more than {self.limit} bytes", 1009, Refusal.MESSAGE_TOO_BIG)
        if size < MIN_FRAME_BYTES - _SIZE:
            raise malformed("the frame is too short")
        return size + _SIZE

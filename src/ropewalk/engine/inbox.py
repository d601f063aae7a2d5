"""What a client has sent and the session has not handled yet, bounded by number and bytes.

Past either bound the client's socket is not read until enough was handled: it waits, and loses nothing.
"""

from collections import deque
from collections.abc import Callable

MOST_FRAMES, FEW_FRAMES = 64, 16
MOST_BYTES, FEW_BYTES = 131_072, 65_536


class Inbox:
    """Frames in the order they came. `hold` stops reading the client's socket (True) or goes on with it (False)."""

    __slots__ = ("_bytes", "_frames", "_hold", "held")

    def __init__(self, hold: Callable[[bool], None]) -> None:
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._hold = hold
        self.held = False

    def __bool__(self) -> bool:
        return bool(self._frames)

    def put(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._bytes += len(frame)
        if not self.held and (len(self._frames) >= MOST_FRAMES or self._bytes >= MOST_BYTES):
            self.held = True
            self._hold(True)

    def take(self) -> bytes:
        frame = self._frames.popleft()
        self._bytes -= len(frame)
        if self.held and len(self._frames) <= FEW_FRAMES and self._bytes <= FEW_BYTES:
            self.held = False
            self._hold(False)
        return frame

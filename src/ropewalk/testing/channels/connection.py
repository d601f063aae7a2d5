"""A connection without a network: what the server writes to it is read at once."""

from collections.abc import Callable, Iterator

Read = Callable[[bytes], None]


class DirectConnection:
    """Implements `ports.Connection`. `read` gets each text of the server; `ended` is called once, when the server closes."""

    direct = None

    def __init__(self, read: Read, ended: Callable[[], None]) -> None:
        self._read = read
        self._ended = ended

    def write(self, data: bytes) -> None:
        for text in texts(data):
            self._read(text)

    def close(self, code: int, text: str) -> None:
        self._ended()

    def pending(self) -> int:
        return 0

    async def wait_ready(self) -> None:
        pass

    def unsent(self) -> int:
        return 0

    def hold_reading(self, hold: bool) -> None:
        """Nothing is sent ahead, so that there is nothing to hold."""


def texts(frames: bytes) -> Iterator[bytes]:
    """What the server's text frames carry; it writes those of one tick at once."""
    start = 0
    while start < len(frames):
        size, start = frames[start + 1], start + 2
        if size > 125:
            width = 2 if size == 126 else 8
            size, start = int.from_bytes(frames[start : start + width]), start + width
        yield frames[start : start + size]
        start += size

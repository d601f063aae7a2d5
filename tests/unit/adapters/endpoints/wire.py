"""A transport without a network, for tests of connections."""

import asyncio
from typing import Any


class Wire(asyncio.Transport):
    """Keeps everything that is written, and whether the connection is read or closed.

    Args:
        sock: returned as the transport's socket.
    """

    def __init__(self, sock: object = None) -> None:
        super().__init__()
        self.protocol: asyncio.BaseProtocol | None = None
        self.writes: list[bytes] = []
        self.reads = True
        self.closed = False
        self._sock = sock

    @property
    def written(self) -> bytes:
        return b"".join(self.writes)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._sock if name == "socket" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        if data:
            self.writes.append(bytes(data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def receive(self, *pieces: bytes) -> None:
        """Passes these to the protocol as separate reads."""
        for piece in pieces:
            assert isinstance(self.protocol, asyncio.Protocol)
            self.protocol.data_received(piece)

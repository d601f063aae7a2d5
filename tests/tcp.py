"""A plain TCP connection for tests that send bytes no client library would send."""

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator

from tests.server import Address

TIMEOUT = 60.0

TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 0x1, 0x2, 0x0, 0x8, 0x9, 0xA

HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


class Tcp:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        with contextlib.suppress(ConnectionError):  # the answer reports a refusal half-way
            await self._writer.drain()

    @property
    def lost(self) -> bool:
        return self._writer.is_closing()

    def abort(self) -> None:
        """Close the connection and discard unsent data."""
        self._writer.transport.abort()

    def end(self) -> None:
        """Half-close: send no more, and continue to read."""
        self._writer.write_eof()

    async def to_the_end(self) -> bytes:
        """Everything until the other side closes; a reset is an end too."""
        data = b""
        async with asyncio.timeout(TIMEOUT):
            with contextlib.suppress(ConnectionError):
                while chunk := await self._reader.read(65536):
                    data += chunk
        return data

    async def some(self) -> bytes:
        """The next bytes."""
        async with asyncio.timeout(TIMEOUT):
            return await self._reader.read(65536)

    async def head(self) -> bytes:
        """The head of an HTTP response."""
        async with asyncio.timeout(TIMEOUT):
            return await self._reader.readuntil(b"\r\n\r\n")

    async def response(self) -> tuple[int, bytes]:
        """Status and body of one HTTP response with a Content-Length."""
        head = await self.head()
        sizes = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        async with asyncio.timeout(TIMEOUT):
            body = await self._reader.readexactly(sizes[0]) if sizes else b""
        return int(head.split()[1]), body

    async def upgrade(self, protocol: str = "actioncable-v1-ext-json") -> None:
        """Become a WebSocket connection, past its welcome."""
        await self.send(upgrade_request(protocol=protocol))
        status, _ = await self.response()
        assert status == 101
        await self.frame()

    async def frame(self) -> tuple[int, bytes]:
        """One frame of the server: opcode and payload."""
        async with asyncio.timeout(TIMEOUT):
            first, size = await self._reader.readexactly(2)
            if size == 126:
                size = int.from_bytes(await self._reader.readexactly(2))
            elif size == 127:
                size = int.from_bytes(await self._reader.readexactly(8))
            return first & 0xF, await self._reader.readexactly(size)

    async def frame_with(self, part: bytes) -> bytes:
        """The payload of the next frame that contains `part`. Frames before it are skipped."""
        while part not in (frame := await self.frame())[1]:
            pass
        return frame[1]

    async def close_code(self) -> int:
        """The code of the server's close frame. Frames before it are skipped."""
        while True:
            opcode, payload = await self.frame()
            if opcode == CLOSE:
                return int.from_bytes(payload[:2])


def upgrade_request(path: str = "/cable", protocol: str = "", **headers: str | None) -> bytes:
    """A valid upgrade. `headers` replaces headers, or removes those that are None; `_` stands for `-`."""
    lines: dict[str, str | None] = {
        "host": "127.0.0.1",
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "sec-websocket-protocol": protocol or None,
    }
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in lines.items() if value is not None)]
    return ("\r\n".join(head) + "\r\n\r\n").encode("latin-1")


def client_frame(payload: bytes, opcode: int = TEXT, fin: bool = True, reserved: int = 0, masked: bool = True) -> bytes:
    size = len(payload)
    if size < 126:
        length = bytes([size | (0x80 if masked else 0)])
    elif size < 65536:
        length = bytes([126 | (0x80 if masked else 0)]) + size.to_bytes(2)
    else:
        length = bytes([127 | (0x80 if masked else 0)]) + size.to_bytes(8)
    head = bytes([(0x80 if fin else 0) | reserved << 4 | opcode]) + length
    if not masked:
        return head + payload
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))


@contextlib.asynccontextmanager
async def tcp(server: Address, upgraded: bool = False, tls: ssl.SSLContext | None = None) -> AsyncIterator[Tcp]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=tls)
    try:
        link = Tcp(reader, writer)
        if upgraded:
            await link.upgrade()
        yield link
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

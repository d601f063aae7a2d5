"""A client of Broky for tests: frames out, frames in, and nothing done by itself."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from ropewalk.protocol.broky.frames import Body, Error, Hello, Run, Subscribe, Subscribed, Welcome
from ropewalk.protocol.broky.runs import decode, encode_run
from ropewalk.protocol.broky.splitter import FrameSplitter
from ropewalk.protocol.broky.tables import encode
from tests.server import Address

SECONDS = 20.0

T = TypeVar("T")


class BrokyClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._splitter = FrameSplitter()
        self._frames: list[bytes] = []

    def send(self, *bodies: Body) -> None:
        """In one write."""
        self.writer.write(b"".join(encode_run(body) if isinstance(body, Run) else encode(body) for body in bodies))

    async def receive(self) -> Body | None:
        """The next frame; None at the end."""
        async with asyncio.timeout(SECONDS):
            while not self._frames:
                data = await self._reader.read(65536)
                if not data:
                    return None
                self._frames += self._splitter.feed(data)
        return decode(self._frames.pop(0))

    async def expect(self, kind: type[T]) -> T:
        body = await self.receive()
        assert isinstance(body, kind), body
        return body

    async def some(self, kind: type[T], count: int) -> list[T]:
        return [await self.expect(kind) for _ in range(count)]

    async def subscribe(self, key: bytes, epoch: bytes = b"", offset: int = 0, history: bool = False) -> Subscribed:
        self.send(Subscribe(1, key, epoch=epoch, offset=offset, history=history))
        return await self.expect(Subscribed)

    async def ended(self) -> Error:
        """The error by which the server ends it; then nothing comes any more."""
        error = await self.expect(Error)
        assert await self.receive() is None
        return error


@asynccontextmanager
async def stranger(server: Address, tls: ssl.SSLContext | None = None) -> AsyncIterator[BrokyClient]:
    """Connected, and nothing said."""
    named: dict[str, Any] = {"server_hostname": "localhost"} if tls else {}
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=tls, **named)
    try:
        yield BrokyClient(reader, writer)
    finally:
        writer.close()


@asynccontextmanager
async def client(server: Address, token: str = "", tls: ssl.SSLContext | None = None) -> AsyncIterator[BrokyClient]:
    """Welcomed."""
    async with stranger(server, tls) as connection:
        connection.send(Hello(token=token.encode()))
        assert (await connection.expect(Welcome)).version == 1
        yield connection

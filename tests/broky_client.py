"""A client of Broky for tests: frames out, frames in, and nothing done by itself."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from msgspec.structs import replace

from ropewalk.protocol.broky.frames import Body, Error, Hello, Run, Subscribe, Subscribed, Welcome
from ropewalk.protocol.broky.runs import decode, encode_run, payloads_of
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

    async def messages(self, count: int) -> list[Run]:
        """So many messages, each as a run of its own, in however few runs they come."""
        found: list[Run] = []
        while len(found) < count:
            found += one_by_one(await self.expect(Run))
        assert len(found) == count, found
        return found

    async def subscribe(self, key: bytes, epoch: bytes = b"", offset: int = 0, history: bool = False) -> Subscribed:
        self.send(Subscribe(1, key, epoch=epoch, offset=offset, history=history))
        return await self.expect(Subscribed)

    async def ended(self) -> Error:
        """The error by which the server ends it; then nothing comes any more."""
        error = await self.expect(Error)
        assert await self.receive() is None
        return error


def one_by_one(run: Run) -> list[Run]:
    """Each message of a delivered run as one of its own."""
    return [
        replace(
            run, count=1, sizes=(), payload=payload, offset=run.offset + index if run.offset else 0, ts_producer=(), uid=b""
        )
        for index, payload in enumerate(payloads_of(run))
    ]


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
async def client(
    server: Address, token: str = "", tls: ssl.SSLContext | None = None, credit: int = 0
) -> AsyncIterator[BrokyClient]:
    """Welcomed."""
    async with stranger(server, tls) as connection:
        connection.send(Hello(token=token.encode(), credit=credit))
        assert (await connection.expect(Welcome)).version == 1
        yield connection

"""Broky clients for tests: frames out, frames in, and no action of their own."""

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from msgspec.structs import replace

from ropewalk.protocol.broky.frames import Body, Error, Hello, Pushed, Run, Subscribe, Subscribed, Welcome
from ropewalk.protocol.broky.runs import decode, encode_run, split_payloads
from ropewalk.protocol.broky.splitter import FrameSplitter
from ropewalk.protocol.broky.tables import encode
from tests.server import Address

TIMEOUT = 60.0
CLOSE_SECONDS = 5.0
MAX_READ_BYTES = 65_536  # of one read

T = TypeVar("T")


def new_key() -> bytes:
    """The key of a stream that no other test uses."""
    return random.randbytes(12).hex().encode()


class Cut(Exception):
    """The other side has ended the connection."""


class BrokyLink:
    """A connection whose client chooses how much it reads.

    `taken` counts the bytes that were read, `whole` those of them that belong to complete frames.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._splitter = FrameSplitter()
        self._read: list[Body] = []  # and not returned yet
        self.taken = 0
        self.whole = 0

    @classmethod
    async def open(cls, server: Address) -> "BrokyLink":
        async with asyncio.timeout(TIMEOUT):
            return cls(*await asyncio.open_connection("127.0.0.1", server.port))

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def flush(self) -> None:
        async with asyncio.timeout(TIMEOUT):
            await self._writer.drain()

    async def some(self, most: int = MAX_READ_BYTES, seconds: float = TIMEOUT) -> list[Body]:
        """The frames of the next bytes, which are at most `most`. Raises Cut."""
        if not self._read:
            async with asyncio.timeout(seconds):
                data = await self._reader.read(min(most, MAX_READ_BYTES))
            if not data:
                raise Cut
            self.taken += len(data)
            frames = list(self._splitter.feed(data))
            self.whole += sum(map(len, frames))
            self._read = list(map(decode, frames))
        taken, self._read = self._read, []
        return taken

    async def next(self) -> Body:
        bodies = await self.some()
        while not bodies:
            bodies = await self.some()
        self._read = bodies[1:]
        return bodies[0]

    def cut(self) -> None:
        self._writer.transport.abort()

    def hang_up(self) -> None:
        """As a process that exits: sends what was written, does not read what comes."""
        self._writer.close()


class BrokyClient:
    """A connection for one test, which expects the frames of a conversation."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._link = BrokyLink(reader, writer)
        self.writer = writer

    def send(self, *bodies: Body) -> None:
        """In one write."""
        self.writer.write(b"".join(encode_run(body) if isinstance(body, Run) else encode(body) for body in bodies))

    async def receive(self) -> Body | None:
        """The next frame; None at the end."""
        try:
            return await self._link.next()
        except Cut:
            return None

    async def expect(self, kind: type[T]) -> T:
        body = await self.receive()
        assert isinstance(body, kind), body
        return body

    async def some(self, kind: type[T], count: int) -> list[T]:
        return [await self.expect(kind) for _ in range(count)]

    async def until(self, kind: type[T]) -> tuple[list[Body], T]:
        """The frames before the next one of this kind, and that one."""
        before: list[Body] = []
        while not isinstance(body := await self.receive(), kind):
            assert body is not None, before
            before.append(body)
        return before, body

    async def rest(self) -> list[Body]:
        """All frames up to the end of the connection."""
        found: list[Body] = []
        while (body := await self.receive()) is not None:
            found.append(body)
        return found

    async def messages(self, count: int) -> list[Run]:
        """The next `count` messages, each as a separate run, in any number of runs."""
        found: list[Run] = []
        while len(found) < count:
            found += one_by_one(await self.expect(Run))
        assert len(found) == count, found
        return found

    async def subscribe(self, key: bytes, epoch: bytes = b"", offset: int = 0, history: bool = False) -> Subscribed:
        self.send(Subscribe(1, key, epoch=epoch, offset=offset, history=history))
        return await self.expect(Subscribed)

    async def ended(self) -> Error:
        """The error with which the server ends the connection, and which must be its last frame."""
        error = await self.expect(Error)
        assert await self.receive() is None
        return error

    def pause_reading(self) -> None:
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]  # the stream reader's own transport

    def resume_reading(self) -> None:
        self.writer.transport.resume_reading()  # type: ignore[attr-defined]


def one_by_one(run: Run) -> list[Run]:
    """Each message of a delivered run as one of its own."""
    return [
        replace(
            run, count=1, sizes=(), payload=payload, offset=run.offset + index if run.offset else 0, ts_producer=(), uid=b""
        )
        for index, payload in enumerate(split_payloads(run))
    ]


def positions(pushed: Pushed) -> dict[int, tuple[bytes, int]]:
    """Epoch and offset of the first message, by ref."""
    found: dict[int, tuple[bytes, int]] = {}
    at = 0
    for ref, offset in zip(pushed.refs, pushed.offsets, strict=True):
        end = at + 1 + pushed.epochs[at]
        found[ref] = pushed.epochs[at + 1 : end], offset
        at = end
    assert at == len(pushed.epochs)
    return found


def answered_refs(answers: list[Body]) -> list[int]:
    """The refs of all pushes that these frames confirm."""
    return [ref for answer in answers if isinstance(answer, Pushed) for ref in answer.refs]


async def close(writer: asyncio.StreamWriter) -> None:
    """Sends what was written if the peer reads it soon. A transport that outlives its event loop would be a warning."""
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await writer.wait_closed()
    writer.transport.abort()


@asynccontextmanager
async def stranger(server: Address, tls: ssl.SSLContext | None = None) -> AsyncIterator[BrokyClient]:
    """Connected, with no Hello sent."""
    named: dict[str, Any] = {"server_hostname": "localhost"} if tls else {}
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=tls, **named)
    try:
        yield BrokyClient(reader, writer)
    finally:
        await close(writer)


@asynccontextmanager
async def client(
    server: Address, token: str = "", tls: ssl.SSLContext | None = None, credit: int = 0
) -> AsyncIterator[BrokyClient]:
    """Welcomed."""
    async with stranger(server, tls) as connection:
        connection.send(Hello(token=token.encode(), credit=credit))
        assert (await connection.expect(Welcome)).version == 1
        yield connection

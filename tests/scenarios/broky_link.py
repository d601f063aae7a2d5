"""A connection over TCP for clients that live through storms and faults: it is read as little as they like, and ends anyhow."""

import asyncio

from ropewalk.protocol.broky.frames import Body, Pushed
from ropewalk.protocol.broky.runs import decode
from ropewalk.protocol.broky.splitter import FrameSplitter
from tests.cable import TIMEOUT
from tests.server import Address

PIECE = 10_000  # bytes that are read at most at once


class Cut(Exception):
    """The other side has ended the connection."""


class BrokyLink:
    """`taken` counts the bytes that were read, `whole` those of them that were whole frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._splitter = FrameSplitter()
        self._read: list[Body] = []  # and not given to anybody yet
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

    async def some(self, most: int = PIECE, seconds: float = TIMEOUT) -> list[Body]:
        """The frames of the next bytes, of which there are at most so many. Raises Cut."""
        if not self._read:
            async with asyncio.timeout(seconds):
                data = await self._reader.read(min(most, PIECE))
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
        """As a process that exits: what was written is sent, what comes is not read."""
        self._writer.close()


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

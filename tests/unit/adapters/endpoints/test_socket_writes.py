"""Direct writes on both event loops: order is kept, and a socket is closed with its transport."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import uvloop

from ropewalk.adapters.endpoints.socket_writes import SocketWrites

MUCH = bytes(65536)


class Peer(asyncio.Protocol):
    def __init__(self) -> None:
        self.paused: list[bool] = []

    def pause_writing(self) -> None:
        self.paused.append(True)

    def resume_writing(self) -> None:
        self.paused.append(False)


@dataclass
class Pair:
    sock: socket.socket
    transport: asyncio.Transport
    peer: Peer
    reader: asyncio.StreamReader
    writes: SocketWrites


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        reader, writer = await asyncio.open_connection(*listening.getsockname(), limit=1)
        sock, _ = listening.accept()
    sock.setblocking(False)
    transport, peer = await asyncio.get_running_loop().connect_accepted_socket(Peer, sock)
    yield Pair(sock, transport, peer, reader, SocketWrites(sock, transport))
    transport.close()
    writer.close()


def fill(writes: SocketWrites) -> int:
    """Writes until the kernel's buffer is full. Returns the number of bytes."""
    taken = 0
    while True:
        try:
            taken += writes.send(MUCH)
        except BlockingIOError:
            return taken


Run = Callable[[Coroutine[Any, Any, None]], None]
on_both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


async def write_through_both() -> None:
    async with pair() as there:
        there.transport.write(b"first")
        taken = fill(there.writes)
        assert there.peer.paused == []
        there.transport.write(b"last")
        assert there.peer.paused == [True]  # at once, also for a small write
        assert await there.reader.readexactly(5 + taken + 4) == b"first" + bytes(taken) + b"last"
        while there.peer.paused[-1]:
            await asyncio.sleep(0)
        assert there.writes.send(b"more") == 4
        assert await there.reader.readexactly(4) == b"more"


@on_both_loops
def test_direct_writes_do_not_overtake_buffered_ones(run: Run) -> None:
    run(write_through_both())


async def write_after_end() -> None:
    async with pair() as there:
        there.writes.end()
        fill(there.writes)
        there.transport.write(b"little")
        assert there.peer.paused == []


@on_both_loops
def test_small_writes_are_buffered_again_after_direct_writes_end(run: Run) -> None:
    run(write_after_end())


async def write_after_abort() -> None:
    async with pair() as there:
        there.transport.abort()
        while there.sock.fileno() >= 0:
            await asyncio.sleep(0)
        with pytest.raises(OSError, match="Bad file descriptor"):
            there.writes.send(b"more")


@on_both_loops
def test_direct_write_after_the_transport_is_closed_fails(run: Run) -> None:
    run(write_after_abort())

"""The tunnel between two nodes of a ring, over a real connection on the loopback."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import uvloop
from msgspec import Raw

from ropewalk.adapters.backends.ring import tunnel
from ropewalk.adapters.backends.ring.tunnel import Tunnel, enter
from ropewalk.adapters.backends.workers.wire import NOTE, BusConnection, arguments, frame
from ropewalk.model.errors import Unavailable
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.tables import encode
from ropewalk.testing.clock import ManualClock

TOKEN = "token"
WELCOME = frames.Welcome(node="b")


class End:
    """One end of a bus. `received` has the arguments of all notes received."""

    def __init__(self) -> None:
        self.received: list[str] = []
        self.lost = asyncio.Event()
        self.bus = BusConnection(self._receive, lambda bus: self.lost.set())

    def _receive(self, bus: BusConnection, kind: int, number: int, name: str, body: Raw) -> None:
        self.received += arguments(name, body)

    def send(self, text: str) -> None:
        self.bus.send(frame(NOTE, 0, "unlisten", (text,)))


class Port(asyncio.Protocol):
    """Answers a Hello, and then becomes the other end of the tunnel, or sends nothing more."""

    def __init__(self, end: End, answer: frames.Body, silent: bool) -> None:
        self._end = end
        self._answer = answer
        self._silent = silent
        self._answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._answered:
            return
        self._answered = True
        self.transport.write(encode(self._answer))
        if not self._silent:
            there = Tunnel(self._end.bus)
            self.transport.set_protocol(there)
            there.begin(self.transport)


@asynccontextmanager
async def port(
    end: End, answer: frames.Body = WELCOME, silent: bool = False
) -> AsyncIterator[tuple[tuple[str, int], list[Port]]]:
    made: list[Port] = []

    def accept() -> Port:
        made.append(Port(end, answer, silent))
        return made[-1]

    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname(), made
    finally:
        for each in made:
            each.transport.abort()
        server.close()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0)


async def test_notes_of_any_size_arrive_in_order() -> None:
    here, there = End(), End()
    async with port(there) as (address, _):
        await enter(here.bus, address, None, TOKEN, "a")
        sent = ["first", "x" * (3 * tunnel.PIECE), "", "last"]
        for text in sent:
            here.send(text)
        await until(lambda: len(there.received) == len(sent))
        assert there.received == sent
        there.send("answer")
        await until(lambda: here.received)
        here.bus.close()
        await there.lost.wait()


@pytest.mark.parametrize(
    "answer",
    [frames.Welcome(), frames.Error(frames.Reason.UNAUTHORIZED, "no"), frames.Pong()],
    ids=["as a client", "refused", "nonsense"],
)
async def test_unauthorized_node_is_refused(answer: frames.Body) -> None:
    here = End()
    async with port(End(), answer, silent=True) as (address, _):
        with pytest.raises(Unavailable, match="--secret"):
            await enter(here.bus, address, None, TOKEN, "a")


async def test_refusal_for_another_reason_is_reported() -> None:
    here = End()
    answer = frames.Error(frames.Reason.DRAINING, "the server restarts")
    async with port(End(), answer, silent=True) as (address, _):
        with pytest.raises(Unavailable, match=r"^it refuses this node: the server restarts$"):
            await enter(here.bus, address, None, TOKEN, "a")


async def advance(clock: ManualClock, seconds: float) -> None:
    """Advances by heartbeats, each with enough steps to be answered."""
    for _ in range(int(seconds / tunnel.BEAT_SECONDS)):
        clock.advance(tunnel.BEAT_SECONDS)
        for _ in range(10):
            await asyncio.sleep(0)


async def test_silent_peer_is_disconnected(loop_clock: ManualClock) -> None:
    here = End()
    async with port(End(), silent=True) as (address, _):
        await enter(here.bus, address, None, TOKEN, "a")
        await advance(loop_clock, tunnel.SILENT_SECONDS)
        assert not here.lost.is_set()
        await advance(loop_clock, 2 * tunnel.BEAT_SECONDS)
        await here.lost.wait()


async def test_idle_ends_stay_connected(loop_clock: ManualClock) -> None:
    here, there = End(), End()
    async with port(there) as (address, _):
        await enter(here.bus, address, None, TOKEN, "a")
        await advance(loop_clock, 5 * tunnel.SILENT_SECONDS)
        here.send("still connected")
        await until(lambda: there.received)
        assert not here.lost.is_set()
        assert not there.lost.is_set()


@pytest.mark.parametrize("data", [b"\x00" * 64, encode(WELCOME)], ids=["malformed", "for clients"])
async def test_invalid_frame_ends_the_connection(data: bytes) -> None:
    here, there = End(), End()
    async with port(there, silent=True) as (address, made):
        await enter(here.bus, address, None, TOKEN, "a")
        made[0].transport.write(data)
        async with asyncio.timeout(60):
            await here.lost.wait()


def test_write_in_the_step_of_the_disconnect_is_dropped() -> None:
    """On the event loop of the server: asyncio's own tolerates writes to a closed transport."""
    failures: list[dict[str, Any]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        here, there = End(), End()
        async with port(there) as (address, _):
            await enter(here.bus, address, None, TOKEN, "a")
            assert here.bus._transport is not None
            here.bus._transport.abort()
            here.send("too late")
            await here.lost.wait()
            await there.lost.wait()

    uvloop.run(scenario())
    assert failures == []

"""The tunnel between two nodes of a ring, over a real connection on the loopback."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
import uvloop
from msgspec import Raw

from ropewalk.adapters.backends.ring import tunnel
from ropewalk.adapters.backends.ring.tunnel import Tunnel, enter
from ropewalk.adapters.backends.workers.wire import NOTE, BusConnection, frame
from ropewalk.core.node_proofs import DialledNode, DiallingNode
from ropewalk.model.errors import Unavailable
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.tables import encode, read
from ropewalk.testing.clock import ManualClock

KEY = "key of the ring"
WELCOME = frames.Welcome(node="b")


def dialling(node: str = "b") -> DiallingNode:
    return DiallingNode(KEY, node, "a~1")


class End:
    """One end of a bus. `received` has the arguments of all notes received."""

    def __init__(self) -> None:
        self.received: list[str] = []
        self.lost = asyncio.Event()
        self.bus = BusConnection(self._receive, lambda bus: self.lost.set())

    def _receive(self, bus: BusConnection, kind: int, number: int, name: str, body: Raw) -> None:
        self.received += msgspec.msgpack.decode(body, type=list[str])

    def send(self, text: str) -> None:
        self.bus.send(frame(NOTE, 0, "unlisten", (text,)))


class Port(asyncio.Protocol):
    """Proves the key, answers the proof of the other node, and then becomes the other end of the tunnel, or sends nothing
    more."""

    def __init__(self, end: End, answer: frames.Body, silent: bool, key: str) -> None:
        self._end = end
        self._answer = answer
        self._silent = silent
        self._proving = DialledNode(key, "b")
        self.received: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received.append(data)
        if len(self.received) > 2:
            return
        greeting = read(data)
        assert isinstance(greeting, frames.Peer)
        if len(self.received) == 1:
            self.transport.write(encode(frames.Peer(self._proving.respond(greeting.data))))
            return
        self._proving.verify(greeting.data)
        self.transport.write(encode(self._answer))
        if not self._silent:
            there = Tunnel(self._end.bus)
            self.transport.set_protocol(there)
            there.begin(self.transport)


@asynccontextmanager
async def port(
    end: End, answer: frames.Body = WELCOME, silent: bool = False, key: str = KEY
) -> AsyncIterator[tuple[tuple[str, int], list[Port]]]:
    made: list[Port] = []

    def accept() -> Port:
        made.append(Port(end, answer, silent, key))
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
        await enter(here.bus, address, None, dialling())
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
    [frames.Error(frames.Reason.UNAUTHORIZED, "no"), frames.Pong(), frames.Peer(b"bus")],
    ids=["refused", "nonsense", "not welcomed"],
)
async def test_unauthorized_node_is_refused(answer: frames.Body) -> None:
    here = End()
    async with port(End(), answer, silent=True) as (address, _):
        with pytest.raises(Unavailable, match="--secret"):
            await enter(here.bus, address, None, dialling())


async def test_refusal_for_another_reason_is_reported() -> None:
    here = End()
    answer = frames.Error(frames.Reason.DRAINING, "the server restarts")
    async with port(End(), answer, silent=True) as (address, _):
        with pytest.raises(Unavailable, match=r"^it refuses this node: the server restarts$"):
            await enter(here.bus, address, None, dialling())


@pytest.mark.parametrize(
    ("key", "node", "reason"),
    [("another key", "b", "does not have the key of this ring"), (KEY, "c", "the node at this address is b, not c")],
    ids=["wrong key", "another node"],
)
async def test_unproven_node_gets_nothing_but_the_challenge(key: str, node: str, reason: str) -> None:
    here = End()
    async with port(End(), key=key) as (address, made):
        with pytest.raises(Unavailable, match=reason):
            await enter(here.bus, address, None, dialling(node))
        await until(made[0].transport.is_closing)
        assert len(made[0].received) == 1
        assert KEY.encode() not in made[0].received[0]


class Stranger(asyncio.Protocol):
    """A server without the key, at an address where a node is looked for."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer
        self.received: list[bytes] = []
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received.append(data)
        self._transport.write(self._answer(data))

    def connection_lost(self, reason: Exception | None) -> None:
        self.gone.set()


OTHER_LINK = DialledNode(KEY, "b").respond(dialling().challenge)
STRANGERS: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda challenge: b"",
    "garbage": lambda challenge: b"\xff" * 64,
    "a large frame": lambda challenge: (tunnel.MAX_GREETING_BYTES + 1).to_bytes(4, "little") + bytes(64),
    "the challenge itself": lambda challenge: challenge,
    "a response of another link": lambda challenge: encode(frames.Peer(OTHER_LINK)),
    "a welcome": lambda challenge: encode(WELCOME),
    "HTTP": lambda challenge: b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


@pytest.mark.parametrize("answer", STRANGERS.values(), ids=STRANGERS)
async def test_stranger_learns_nothing_and_holds_the_link_for_a_bounded_time(
    answer: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel, "CONNECT_SECONDS", 0.2)
    here, stranger = End(), Stranger(answer)
    server = await asyncio.get_running_loop().create_server(lambda: stranger, "127.0.0.1", 0)
    async with server:
        with pytest.raises(Unavailable):
            await enter(here.bus, server.sockets[0].getsockname(), None, dialling())
        await asyncio.wait_for(stranger.gone.wait(), 60)
    (challenge,) = [read(data) for data in stranger.received]
    assert isinstance(challenge, frames.Peer)
    assert KEY.encode() not in challenge.data
    assert not here.received


async def advance(clock: ManualClock, seconds: float) -> None:
    """Advances by heartbeats, each with enough steps to be answered."""
    for _ in range(int(seconds / tunnel.BEAT_SECONDS)):
        clock.advance(tunnel.BEAT_SECONDS)
        for _ in range(10):
            await asyncio.sleep(0)


async def test_silent_peer_is_disconnected(loop_clock: ManualClock) -> None:
    here = End()
    async with port(End(), silent=True) as (address, _):
        await enter(here.bus, address, None, dialling())
        await advance(loop_clock, tunnel.SILENT_SECONDS)
        assert not here.lost.is_set()
        await advance(loop_clock, 2 * tunnel.BEAT_SECONDS)
        await here.lost.wait()


async def test_idle_ends_stay_connected(loop_clock: ManualClock) -> None:
    here, there = End(), End()
    async with port(there) as (address, _):
        await enter(here.bus, address, None, dialling())
        await advance(loop_clock, 5 * tunnel.SILENT_SECONDS)
        here.send("still connected")
        await until(lambda: there.received)
        assert not here.lost.is_set()
        assert not there.lost.is_set()


@pytest.mark.parametrize("data", [b"\x00" * 64, encode(WELCOME)], ids=["malformed", "for clients"])
async def test_invalid_frame_ends_the_connection(data: bytes) -> None:
    here, there = End(), End()
    async with port(there, silent=True) as (address, made):
        await enter(here.bus, address, None, dialling())
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
            await enter(here.bus, address, None, dialling())
            assert here.bus._transport is not None
            here.bus._transport.abort()
            here.send("too late")
            await here.lost.wait()
            await there.lost.wait()

    uvloop.run(scenario())
    assert failures == []

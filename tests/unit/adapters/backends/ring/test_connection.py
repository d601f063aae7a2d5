"""The link between two nodes of a ring, over a real connection on the loopback."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
import uvloop
from msgspec import Raw

from ropewalk.adapters.backends.ring import connection
from ropewalk.adapters.backends.ring.connection import HEARTBEAT, MAX_GREETING_BYTES, NodeConnection, NodeGreeting, dial
from ropewalk.adapters.backends.workers.wire import NOTE, BusConnection, frame
from ropewalk.core.node_proofs import WELCOME, DialledNode, DiallingNode, encode_rejection
from ropewalk.model.errors import NotProven, Unavailable
from ropewalk.testing.clock import ManualClock
from tests import certificates

KEY = "key of the ring"


def dialling(node: str = "b", key: str = KEY) -> DiallingNode:
    return DiallingNode(key, node, "a~1")


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(4, "little") + message


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


class Listening:
    """The other end of all connections. `greetings`: those accepted."""

    def __init__(self, end: End, key: str, silent: bool) -> None:
        self._end = end
        self._key = key
        self._silent = silent
        self._tasks: list[asyncio.Task[None]] = []
        self.greetings: list[NodeGreeting] = []
        self.transports: list[asyncio.Transport] = []

    def accept(self) -> NodeGreeting:
        greeting = NodeGreeting()
        self.greetings.append(greeting)
        self._tasks.append(asyncio.get_running_loop().create_task(self._greet(greeting)))
        return greeting

    async def _greet(self, greeting: NodeGreeting) -> None:
        node = DialledNode(self._key, "b")
        try:
            greeting.send(node.respond(await greeting.receive()))
            node.verify(await greeting.receive())
        except Unavailable:
            return
        greeting.send(WELCOME)
        transport, ahead = greeting.detach()
        self.transports.append(transport)
        if not self._silent:
            NodeConnection(self._end.bus).begin(transport, ahead)


@asynccontextmanager
async def port(
    end: End, silent: bool = False, key: str = KEY, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[tuple[str, int], Listening]]:
    listening = Listening(end, key, silent)
    server = await asyncio.get_running_loop().create_server(listening.accept, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname(), listening
    finally:
        for transport in listening.transports:
            transport.abort()
        server.close()


async def until(holds: Callable[[], object]) -> None:
    """Without a timer: the clock may stand still."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0)


async def exchange(tls: ssl.SSLContext | None = None, trust: ssl.SSLContext | None = None) -> None:
    here, there = End(), End()
    async with port(there, tls=tls) as (address, _):
        await dial(here.bus, address, trust, dialling())
        sent = ["first", "x" * (3 << 20), "", "last"]
        for text in sent:
            here.send(text)
        await until(lambda: len(there.received) == len(sent))
        assert there.received == sent
        there.send("answer")
        await until(lambda: here.received)
        here.bus.close()
        await there.lost.wait()


async def test_notes_of_any_size_arrive_in_order() -> None:
    await exchange()


def test_notes_of_any_size_arrive_in_order_over_tls() -> None:
    """On the event loop of the server."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificates.CERTIFICATE, certificates.KEY)
    uvloop.run(exchange(tls, certificates.trusting_context()))


@pytest.mark.parametrize(
    ("key", "node", "reason"),
    [("another key", "b", "does not have the key of this ring"), (KEY, "c", "the node at this address is b, not c")],
    ids=["wrong key", "another node"],
)
async def test_unproven_node_gets_nothing_but_the_challenge(key: str, node: str, reason: str) -> None:
    here, there = End(), End()
    async with port(there, key=key) as (address, listening):
        with pytest.raises(NotProven, match=reason):
            await dial(here.bus, address, None, dialling(node))
        assert (len(listening.greetings), listening.transports) == (1, [])


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
STRANGERS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nothing": (lambda challenge: b"", r"no answer in time; --ring must list the ports for nodes \(--ring_port\)"),
    "garbage": (lambda challenge: b"\xff" * 64, "malformed greeting"),
    "a large frame": (lambda challenge: (MAX_GREETING_BYTES + 1).to_bytes(4, "little") + bytes(64), "malformed greeting"),
    "the challenge itself": (lambda challenge: challenge, "malformed greeting"),
    "a response of another link": (lambda challenge: framed(OTHER_LINK), "does not have the key"),
    "a welcome": (lambda challenge: framed(WELCOME), "malformed greeting"),
    "a rejection": (lambda challenge: framed(encode_rejection("go away" + "!" * 1000)), "it refuses this node: go away!{193}$"),
    "HTTP": (lambda challenge: b"HTTP/1.1 400 Bad Request\r\n\r\n", "malformed greeting"),
}


@pytest.mark.parametrize(("answer", "reason"), STRANGERS.values(), ids=STRANGERS)
async def test_stranger_learns_nothing_and_holds_the_link_for_a_bounded_time(
    answer: Callable[[bytes], bytes], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.2 if reason.startswith("no answer") else 60.0)
    here, stranger = End(), Stranger(answer)
    server = await asyncio.get_running_loop().create_server(lambda: stranger, "127.0.0.1", 0)
    async with server:
        with pytest.raises(Unavailable, match=reason):
            await dial(here.bus, server.sockets[0].getsockname(), None, dialling())
        await asyncio.wait_for(stranger.gone.wait(), 60)
    (challenge,) = stranger.received
    assert KEY.encode() not in challenge
    assert not here.received


async def advance(clock: ManualClock, seconds: float) -> None:
    """Advances by heartbeats, each with enough steps to be received."""
    for _ in range(int(seconds / connection.BEAT_SECONDS)):
        clock.advance(connection.BEAT_SECONDS)
        for _ in range(10):
            await asyncio.sleep(0)


async def test_silent_peer_is_disconnected(loop_clock: ManualClock) -> None:
    here = End()
    async with port(End(), silent=True) as (address, _):
        await dial(here.bus, address, None, dialling())
        await advance(loop_clock, connection.SILENT_SECONDS)
        assert not here.lost.is_set()
        await advance(loop_clock, 2 * connection.BEAT_SECONDS)
        await here.lost.wait()


async def test_idle_ends_stay_connected(loop_clock: ManualClock) -> None:
    here, there = End(), End()
    async with port(there) as (address, _):
        await dial(here.bus, address, None, dialling())
        await advance(loop_clock, 5 * connection.SILENT_SECONDS)
        here.send("still connected")
        await until(lambda: there.received)
        assert not here.lost.is_set()
        assert not there.lost.is_set()


async def test_peer_that_sends_a_large_frame_slowly_is_not_silent(loop_clock: ManualClock) -> None:
    here = End()
    sent = frame(NOTE, 0, "unlisten", ("x" * 1000,))
    async with port(End(), silent=True) as (address, listening):
        await dial(here.bus, address, None, dialling())
        for begin in range(0, len(sent), 100):
            listening.transports[0].write(sent[begin : begin + 100])
            await advance(loop_clock, connection.BEAT_SECONDS)
        await until(lambda: here.received)
        assert not here.lost.is_set()


async def test_heartbeats_between_and_ahead_of_frames_are_skipped() -> None:
    here = End()
    async with port(End(), silent=True) as (address, listening):
        await dial(here.bus, address, None, dialling())
        note = frame(NOTE, 0, "unlisten", ("note",))
        listening.transports[0].write(HEARTBEAT + note + HEARTBEAT + HEARTBEAT + note[:3])
        await until(lambda: here.received == ["note"])
        listening.transports[0].write(note[3:] + HEARTBEAT)
        await until(lambda: here.received == ["note", "note"])


@pytest.mark.parametrize("data", [b"\xff" * 64, framed(b"\xc1" * 64)], ids=["too long", "malformed"])
async def test_invalid_frame_ends_the_connection(data: bytes) -> None:
    here, there = End(), End()
    async with port(there, silent=True) as (address, listening):
        await dial(here.bus, address, None, dialling())
        listening.transports[0].write(data)
        async with asyncio.timeout(60):
            await here.lost.wait()


def test_write_in_the_step_of_the_disconnect_is_dropped() -> None:
    """On the event loop of the server: asyncio's own tolerates writes to a closed transport."""
    failures: list[dict[str, Any]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        here, there = End(), End()
        async with port(there) as (address, _):
            await dial(here.bus, address, None, dialling())
            assert here.bus._transport is not None
            here.bus._transport.abort()
            here.send("too late")
            await here.lost.wait()
            await there.lost.wait()

    uvloop.run(scenario())
    assert failures == []

"""A node of a ring at the port of another one: it is let in after it has proved the key, and not before."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from ropewalk.adapters.endpoints.admission import MAX_UNDECIDED, ConnectionAdmission, ConnectionLimits
from ropewalk.adapters.endpoints.broky import HELLO_SECONDS
from ropewalk.core.node_proofs import DialledNode, DiallingNode
from ropewalk.model.refusals import Refusal
from ropewalk.protocol import proxies
from ropewalk.protocol.broky.frames import Body, Error, Hello, Peer, Reason, Welcome
from ropewalk.protocol.broky.runs import decode
from ropewalk.protocol.broky.splitter import FrameSplitter
from ropewalk.protocol.broky.tables import encode
from ropewalk.testing.clock import ManualClock
from tests.unit.adapters.endpoints.test_broky_connection import Endpoint, Socket
from tests.unit.adapters.endpoints.wire import Wire

KEY = "key of the ring"


class Ring:
    """The ring of the node "b". `taken` has the connections of nodes that were let in."""

    name = "b"

    def __init__(self) -> None:
        self.taken: list[asyncio.Transport] = []

    def greet(self) -> DialledNode:
        return DialledNode(KEY, self.name)

    def take_over(self, transport: asyncio.Transport) -> None:
        self.taken.append(transport)


def dialling(key: str = KEY) -> DiallingNode:
    return DiallingNode(key, "b", "a~1")


def peer(data: bytes) -> bytes:
    return encode(Peer(data))


def written(wire: Wire) -> list[Body]:
    return [decode(frame) for frame in FrameSplitter().feed(wire.written)]


def response(wire: Wire) -> bytes:
    first = written(wire)[0]
    assert isinstance(first, Peer)
    return first.data


def refused(wire: Wire) -> Reason:
    last = written(wire)[-1]
    assert isinstance(last, Error)
    return last.reason


async def test_node_with_the_key_is_welcomed_after_its_proof() -> None:
    ring = Ring()
    a = dialling()
    wire = Endpoint(nodes=ring).accept(peer(a.challenge))
    assert (len(written(wire)), ring.taken) == (1, [])
    wire.receive(peer(a.prove(response(wire))))
    assert ring.taken == [wire]
    welcome = written(wire)[1]
    assert isinstance(welcome, Welcome)
    assert welcome.node == "b"


async def test_ring_key_as_a_token_does_not_let_in() -> None:
    ring = Ring()
    Endpoint(key="secret", nodes=ring).accept(encode(Hello(token=KEY.encode(), name="a~1")))
    assert ring.taken == []


async def test_proof_with_another_key_is_refused() -> None:
    ring = Ring()
    endpoint, stranger = Endpoint(nodes=ring), dialling("another key")
    wire = endpoint.accept(peer(stranger.challenge))
    wire.receive(peer(stranger.prove(DialledNode("another key", "b").respond(stranger.challenge))))
    assert (refused(wire), ring.taken) == (Reason.UNAUTHORIZED, [])
    assert endpoint.stats.refusals[Refusal.BAD_KEY] == 1


async def test_replayed_greeting_is_refused() -> None:
    ring = Ring()
    endpoint, a = Endpoint(nodes=ring), dialling()
    wire = endpoint.accept(peer(a.challenge))
    proof = a.prove(response(wire))
    wire.receive(peer(proof))
    again = endpoint.accept(peer(a.challenge))
    again.receive(peer(proof))
    assert (refused(again), ring.taken) == (Reason.UNAUTHORIZED, [wire])


@pytest.mark.parametrize("data", [b"", b"\xff" * 64, b"x" * 10_000], ids=["empty", "garbage", "long"])
async def test_malformed_greeting_is_refused(data: bytes) -> None:
    ring = Ring()
    endpoint = Endpoint(nodes=ring)
    assert refused(endpoint.accept(peer(data))) is Reason.UNAUTHORIZED
    half = endpoint.accept(peer(dialling().challenge))
    half.receive(peer(data))
    assert (refused(half), ring.taken) == (Reason.UNAUTHORIZED, [])


async def test_oversized_greeting_is_refused() -> None:
    wire = Endpoint(nodes=Ring()).accept(peer(bytes(100_000)))
    assert refused(wire) is Reason.TOO_BIG


async def test_bus_frames_before_the_proof_are_not_answered() -> None:
    """Frames behind a proof that fails are dropped, and so is a Hello in the middle of a greeting."""
    ring = Ring()
    endpoint = Endpoint(nodes=ring)
    wire = endpoint.accept(peer(dialling().challenge) + peer(b"a call of the bus") + peer(b"another"))
    assert [type(body) for body in written(wire)] == [Peer, Error]
    wire = endpoint.accept(peer(dialling().challenge) + encode(Hello()))
    assert refused(wire) is Reason.NOT_READY
    assert (ring.taken, endpoint.sessions) == ([], [])


async def test_half_open_greeting_times_out(loop_clock: ManualClock) -> None:
    ring = Ring()
    endpoint = Endpoint(nodes=ring)
    wires = [endpoint.accept(b""), endpoint.accept(peer(dialling().challenge))]
    loop_clock.advance(HELLO_SECONDS + 0.1)
    for _ in range(10):
        await asyncio.sleep(0)
    assert [refused(wire) for wire in wires] == [Reason.NOT_READY] * 2
    assert ring.taken == []


async def test_challenge_to_a_server_without_a_ring_is_refused() -> None:
    assert refused(Endpoint().accept(peer(dialling().challenge))) is Reason.NOT_READY


@pytest.mark.parametrize(
    ("limits", "most"),
    [(ConnectionLimits(), MAX_UNDECIDED), (ConnectionLimits(descriptors=20), 20)],
    ids=["unlimited", "few descriptors"],
)
@pytest.mark.parametrize("first", [peer(dialling().challenge), encode(Hello())], ids=["unproven", "refused"])
async def test_connections_that_are_no_node_and_no_client_are_bounded(
    limits: ConnectionLimits, most: int, first: bytes
) -> None:
    """Also those that are refused, because a client need not close its end."""
    ring = Ring()
    endpoint = Endpoint(nodes=ring)
    port = endpoint.on_port(ConnectionAdmission(replace(limits, clients=1), Counter(), lambda: 1, lambda: 0))
    wires = [Wire(Socket()) for _ in range(most + 10)]
    for wire in wires:
        assert port.may_enter()
        port.enter(wire, first, proxies.Peer(""), None)
    open_now = [not wire.closed for wire in wires]
    assert sum(open_now) <= most
    assert open_now[-1]
    assert not open_now[0]
    a = dialling()
    node = Wire(Socket())
    port.enter(node, peer(a.challenge), proxies.Peer(""), None)
    node.receive(peer(a.prove(response(node))))
    assert ring.taken == [node]

"""Broky connections: frames arrive in order and in bounded numbers, and busy connections take turns."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Sequence
from itertools import pairwise
from typing import Any

import pytest

from ropewalk.adapters.endpoints import broky
from ropewalk.adapters.endpoints.broky import BrokyEndpoint
from ropewalk.adapters.endpoints.broky_connection import MAX_BATCH_BYTES
from ropewalk.adapters.endpoints.broky_pushes import Pushes
from ropewalk.adapters.endpoints.broky_shared import BrokyClients, BrokyOptions
from ropewalk.adapters.endpoints.head_timeouts import MESSAGE_SECONDS
from ropewalk.adapters.endpoints.http_guard import KeyGuard
from ropewalk.adapters.endpoints.turns import TURN_SECONDS, LoopTurns
from ropewalk.core.stats import Stats
from ropewalk.engine.inbox import MAX_FRAMES, Inbox
from ropewalk.model.messages import Publication, Receipt, RemoteDisconnect, TransientRun
from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import ConnectRequest
from ropewalk.ports import Connection
from ropewalk.protocol.broky.forwarding import MIN_RUN_BYTES
from ropewalk.protocol.broky.frames import Error, Format, Hello, Ping, Pushed, Reason, Run
from ropewalk.protocol.broky.runs import build_run, decode, encode_run, split_payloads
from ropewalk.protocol.broky.splitter import FrameSplitter
from ropewalk.protocol.broky.tables import encode
from ropewalk.protocol.codec import SessionCodec
from ropewalk.protocol.proxies import Peer, TrustedProxies
from ropewalk.protocol.publications import PublicationLimits
from ropewalk.testing.clock import ManualClock
from tests.unit.adapters.endpoints.wire import Wire
from tests.unit.adapters.loop_time import pass_time


class Socket:
    def setsockopt(self, *option: int) -> None:
        """Options are ignored."""


class Session:
    """Handles a frame only when the test takes it."""

    def __init__(self, connection: Connection) -> None:
        self.inbox = Inbox(connection.hold_reading)
        self.waiting = 0
        self.timed_out = 0

    def message_overdue(self) -> None:
        self.timed_out += 1

    async def wait_opened(self) -> bool:
        return True

    def receive(self, frame: bytes) -> None:
        self.inbox.put(frame)
        self.waiting += 1

    def wait_idle(self) -> Awaitable[None] | None:
        return self.inbox.wait_idle() if self.waiting else None

    def take(self) -> bytes:
        self.waiting -= 1
        return self.inbox.take()


class Register:
    """A publisher that never suspends. It keeps every stream but "ephemeral"."""

    listened_streams: Container[str] = ("ephemeral",)
    derives_partitions = False

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.on_their_way: asyncio.Future[None] | None = None  # returned to publishers of runs

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        self.payloads += [publication.payload for publication in publications]
        return [Receipt(each.stream, "epoch", len(self.payloads)) for each in publications]

    async def disconnect(self, order: RemoteDisconnect) -> int:
        return 0

    def is_ephemeral(self, stream: str) -> bool:
        return stream == "ephemeral"

    def check_partition(self, stream: str, named: str) -> None:
        pass

    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> asyncio.Future[None] | None:
        self.payloads += [payload for run in runs for payload in split_payloads(run_in(run.frame))]
        return self.on_their_way


def run_in(frame: bytes) -> Run:
    run = decode(frame)
    assert isinstance(run, Run)
    return run


class Work:
    """A clock that advances by so many seconds each time it is read."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = 0.0

    def __call__(self) -> float:
        self.now += self.seconds
        return self.now


class Endpoint:
    """A real endpoint, except for the sessions, the publisher and the clock. Without a key every client may push."""

    def __init__(self, work: float = 0.0, key: str = "") -> None:
        self.sessions: list[Session] = []
        self.register = Register()
        self.stats = Stats()
        self._key = key
        self._endpoint = BrokyEndpoint(
            open_session=self._open_session,
            pushes=Pushes(self.register, PublicationLimits(), self.stats, time.time, instant=True),
            clients=BrokyClients((KeyGuard(key, Counter()),), TrustedProxies(())),
            stats=self.stats,
            options=BrokyOptions(max_command=65536, write_timeout=1.0, shards=1),
            turns=LoopTurns(Work(work)),
        )

    def _open_session(self, request: ConnectRequest, connection: Connection, codec: SessionCodec) -> Any:
        self.sessions.append(Session(connection))
        return self.sessions[-1]

    def accept(self, data: bytes) -> Wire:
        """Returns a connection that has sent these bytes."""
        wire = Wire(Socket())
        self._endpoint.take_over(wire, data, Peer(""))
        return wire

    def drain(self) -> None:
        self._endpoint.drain()

    async def connected(self) -> tuple[Wire, asyncio.Protocol]:
        """Returns a connection after its Hello."""
        wire = Wire(Socket())
        self._endpoint.take_over(wire, encode(Hello(token=self._key.encode())), Peer(""))
        await asyncio.sleep(0)
        wire.writes.clear()
        assert isinstance(wire.protocol, asyncio.Protocol)
        return wire, wire.protocol


async def test_session_receives_no_more_frames_than_its_inbox_holds() -> None:
    endpoint = Endpoint()
    wire, connection = await endpoint.connected()
    [session] = endpoint.sessions
    pings = [encode(Ping(ref)) for ref in range(1, 1001)]
    connection.data_received(b"".join(pings))
    assert (session.waiting, wire.reads) == (MAX_FRAMES, False)
    taken: list[bytes] = []
    while len(taken) < len(pings):
        assert 0 < session.waiting <= MAX_FRAMES
        taken.append(session.take())
        await asyncio.sleep(0)
    assert taken == pings
    assert wire.reads


# --- Turns -----------------------------------------------------------------------------------------------------------

STEPS = 50  # reads of the clock in one turn
A_STEP = TURN_SECONDS / (STEPS - 0.5)
PUSHES = 500
PAYLOADS = [b"%d" % number for number in range(PUSHES)]


def pushes(key: bytes, payloads: Sequence[bytes], ref: int = 0) -> bytes:
    """Runs of the ephemeral stream are forwarded without decoding them."""
    format = Format.BYTES if key == b"ephemeral" else Format.JSON
    return b"".join(encode_run(build_run(key, [each], ref=ref, format=format)) for each in payloads)


async def in_turns(wires: Sequence[Wire], done: Callable[[], int]) -> list[int]:
    """How much was done in each step of the event loop, until all connections are read again."""
    seen = [done()]
    while not all(wire.reads for wire in wires):
        await asyncio.sleep(0)
        seen.append(done())
    return [after - before for before, after in pairwise(seen)]


async def test_busy_producers_take_turns_and_keep_their_order() -> None:
    endpoint = Endpoint(A_STEP)
    producers = [await endpoint.connected() for _ in range(3)]
    registered = endpoint.register.payloads
    for number, (_, connection) in enumerate(producers):
        connection.data_received(pushes(b"k", [b"%d" % (number * 1000 + each) for each in range(PUSHES)]))
    wires = [wire for wire, _ in producers]
    assert not any(wire.reads for wire in wires)
    assert 0 < len(registered) <= STEPS  # of all producers: the second had no time left
    assert max(await in_turns(wires, lambda: len(registered))) <= STEPS  # of one producer
    for number in range(3):
        own = [int(payload) for payload in registered if int(payload) // 1000 == number]
        assert own == list(range(number * 1000, number * 1000 + PUSHES))


@pytest.mark.parametrize("key", [b"k", b"ephemeral"])
async def test_single_push_does_not_wait_for_busy_producers(key: bytes) -> None:
    endpoint = Endpoint(A_STEP)
    wire, connection = await endpoint.connected()
    for _, producer in [await endpoint.connected() for _ in range(5)]:
        producer.data_received(pushes(b"k", PAYLOADS))
    connection.data_received(pushes(key, [b"-1"]))
    assert endpoint.register.payloads[-1] == b"-1"
    assert wire.reads


async def test_ephemeral_runs_are_forwarded_in_turns() -> None:
    endpoint = Endpoint(TURN_SECONDS)
    wire, connection = await endpoint.connected()
    connection.data_received(pushes(b"ephemeral", PAYLOADS))
    passed_on = endpoint.register.payloads
    assert not wire.reads
    assert 1 < len(passed_on) < PUSHES
    assert max(await in_turns([wire], lambda: len(passed_on))) <= MAX_BATCH_BYTES // MIN_RUN_BYTES
    assert passed_on == PAYLOADS


async def test_pushes_are_handled_once_and_in_order_for_any_read_sizes(subtests: pytest.Subtests) -> None:
    for seed in range(20):
        with subtests.test(seed=seed):
            chance = random.Random(seed)
            endpoint = Endpoint(TURN_SECONDS / chance.choice((1, 5, 1000)), key="secret")
            wire, connection = await endpoint.connected()
            keys = [chance.choice((b"ephemeral", b"ephemeral", b"k")) for _ in PAYLOADS]
            stream = b"".join(
                pushes(key, [each]) + encode(Ping(1)) * chance.randrange(2) for key, each in zip(keys, PAYLOADS, strict=True)
            )
            while stream:
                size = chance.choice((1, 100, 200, 1000, 5000, 50_000))
                connection.data_received(stream[:size])
                stream = stream[size:]
                while not wire.reads:
                    await asyncio.sleep(0)
            assert endpoint.register.payloads == PAYLOADS


async def test_frame_inside_a_payload_is_not_parsed() -> None:
    endpoint = Endpoint()
    _, connection = await endpoint.connected()
    inner = encode_run(build_run(b"ephemeral", [b"inner"]))
    outer = encode_run(build_run(b"ephemeral", [inner * 2]))
    connection.data_received(encode_run(build_run(b"ephemeral", [b"first"])))
    begin = outer.index(inner)
    for piece in (outer[:begin], outer[begin : begin + len(inner)], outer[begin + len(inner) :]):
        connection.data_received(piece)
    assert endpoint.register.payloads == [b"first", inner * 2]


async def test_runs_wait_for_earlier_runs_in_delivery() -> None:
    endpoint = Endpoint()
    _, connection = await endpoint.connected()
    connection.data_received(pushes(b"ephemeral", [b"1"]))
    endpoint.register.on_their_way = asyncio.get_running_loop().create_future()
    connection.data_received(pushes(b"ephemeral", [b"2"]))
    connection.data_received(pushes(b"ephemeral", [b"3"]))
    for _ in range(10):
        await asyncio.sleep(0)
    assert endpoint.register.payloads == [b"1", b"2"]
    endpoint.register.on_their_way.set_result(None)
    while len(endpoint.register.payloads) < 3:
        await asyncio.sleep(0)
    assert endpoint.register.payloads == [b"1", b"2", b"3"]


async def test_refused_pushes_take_turns() -> None:
    endpoint = Endpoint(A_STEP)
    wire, connection = await endpoint.connected()
    connection.data_received(encode_run(build_run(b"", [b"x"])) * PUSHES)
    assert not wire.reads
    assert max(await in_turns([wire], lambda: endpoint.stats.publications_refused)) <= STEPS
    assert endpoint.stats.publications_refused == PUSHES


async def test_commands_for_a_session_take_turns() -> None:
    endpoint = Endpoint(TURN_SECONDS / 9.5)
    wire, connection = await endpoint.connected()
    [session] = endpoint.sessions
    connection.data_received(encode(Ping(1)) * (MAX_FRAMES - 1))
    assert session.waiting <= 10
    assert max(await in_turns([wire], lambda: session.waiting)) <= 10
    assert session.waiting == MAX_FRAMES - 1


async def test_half_closed_producer_gets_all_receipts() -> None:
    endpoint = Endpoint(A_STEP, key="secret")
    wire, connection = await endpoint.connected()
    connection.data_received(pushes(b"k", PAYLOADS, ref=1))
    assert connection.eof_received()
    assert not wire.closed
    while not wire.closed:
        await asyncio.sleep(0)
    assert endpoint.register.payloads == PAYLOADS
    answers = [decode(frame) for frame in FrameSplitter().feed(wire.written)]
    assert sum(len(answer.refs) for answer in answers if isinstance(answer, Pushed)) == PUSHES


async def test_waiting_pushes_of_a_lost_connection_are_dropped() -> None:
    endpoint = Endpoint(A_STEP, key="secret")
    wire, connection = await endpoint.connected()
    connection.data_received(pushes(b"k", PAYLOADS))
    wire.close()
    connection.connection_lost(None)
    before = len(endpoint.register.payloads)
    for _ in range(PUSHES):
        await asyncio.sleep(0)
    assert len(endpoint.register.payloads) == before < PUSHES


async def test_malformed_frame_is_reported_after_the_receipts_and_ends_the_input() -> None:
    endpoint = Endpoint(A_STEP, key="secret")
    wire, connection = await endpoint.connected()
    connection.data_received(pushes(b"k", PAYLOADS, ref=1) + bytes(8) + pushes(b"k", [b"-1"]))
    while endpoint.register.payloads != PAYLOADS or not wire.reads:
        await asyncio.sleep(0)
    connection.data_received(pushes(b"k", [b"-1"]))
    for _ in range(10):
        await asyncio.sleep(0)
    assert endpoint.register.payloads == PAYLOADS
    answers = [decode(frame) for frame in FrameSplitter().feed(wire.written)]
    assert isinstance(answers[-1], Error)
    assert answers[-1].reason is Reason.MALFORMED
    assert sum(len(answer.refs) for answer in answers[:-1] if isinstance(answer, Pushed)) == PUSHES


async def test_draining_server_sends_an_error_to_a_waiting_producer() -> None:
    endpoint = Endpoint(A_STEP, key="secret")
    wire, connection = await endpoint.connected()
    connection.data_received(pushes(b"k", PAYLOADS))
    endpoint.drain()
    before = len(endpoint.register.payloads)
    for _ in range(PUSHES):
        await asyncio.sleep(0)
    [error] = [decode(frame) for frame in FrameSplitter().feed(wire.written)]
    assert isinstance(error, Error)
    assert error.reason is Reason.DRAINING
    assert len(endpoint.register.payloads) == before


# --- Frames that are begun --------------------------------------------------------------------------------------------

PUSH = pushes(b"ephemeral", [b"x"])
PING = encode(Ping(1))


@pytest.mark.parametrize("begun", [PUSH[:-1], PUSH + PUSH[:2], PING + PING[:5]], ids=["push", "size", "ping"])
@pytest.mark.parametrize("key", ["", "key"], ids=["subscriber", "publisher"])
async def test_frame_that_is_not_finished_in_time_ends_the_connection(loop_clock: ManualClock, key: str, begun: bytes) -> None:
    endpoint = Endpoint(key=key)
    wire, connection = await endpoint.connected()
    connection.data_received(begun)
    for session in endpoint.sessions:
        session.take() if session.waiting else None
    await pass_time(loop_clock, MESSAGE_SECONDS - 0.1)
    wire.writes.clear()
    assert [session.timed_out for session in endpoint.sessions] == ([] if key else [0])
    await pass_time(loop_clock, 0.2)
    if key:
        error = decode(wire.written)
        assert isinstance(error, Error)
        assert (error.reason, error.reconnect) == (Reason.OVERFLOW, True)
        assert endpoint.stats.refusals == {"message_timeout": 1}
    else:
        assert [session.timed_out for session in endpoint.sessions] == [1]


async def test_each_frame_has_its_own_time(loop_clock: ManualClock) -> None:
    endpoint = Endpoint()
    _, connection = await endpoint.connected()
    connection.data_received(PUSH[:9])
    for _ in range(5):
        await pass_time(loop_clock, 0.9 * MESSAGE_SECONDS)
        connection.data_received(PUSH[9:] + PUSH[:9])
    connection.data_received(PUSH[9:])
    await pass_time(loop_clock, 10 * MESSAGE_SECONDS)
    assert endpoint.register.payloads == [b"x"] * 6
    assert [session.timed_out for session in endpoint.sessions] == [0]


async def test_frame_of_a_client_that_is_not_read_is_not_timed_out(loop_clock: ManualClock) -> None:
    endpoint = Endpoint()
    wire, connection = await endpoint.connected()
    (session,) = endpoint.sessions
    connection.data_received(PING * MAX_FRAMES + PING[:5])
    assert not wire.reads
    await pass_time(loop_clock, 1.5 * MESSAGE_SECONDS)
    assert session.timed_out == 0
    while session.waiting:
        session.take()
    await asyncio.sleep(0)
    assert wire.reads
    await pass_time(loop_clock, MESSAGE_SECONDS)
    assert session.timed_out == 1


async def test_incomplete_frames_of_all_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest connection ends when the limit is exceeded, and its memory is free for others."""
    monkeypatch.setattr(broky, "MAX_UNFINISHED_BYTES", 50_000)
    endpoint = Endpoint(key="key")
    frame = encode_run(build_run(b"a", [b"x" * 20_000]))
    wires: list[Wire] = []
    for _ in range(10):
        wire, _ = await endpoint.connected()
        wires.append(wire)
        wire.receive(frame[:10_000])
        wire.receive(frame[10_000:20_000])
    ended = [bool(wire.writes) for wire in wires]
    assert ended == [True] * 8 + [False] * 2
    assert endpoint.stats.refusals[Refusal.MESSAGE_TIMEOUT] == 8
    for wire in wires[8:]:
        wire.receive(frame[20_000:])
    await asyncio.sleep(0)
    assert len(endpoint.register.payloads) == 2

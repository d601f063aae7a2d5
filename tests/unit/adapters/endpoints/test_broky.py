"""A connection over TCP as a session and the publisher get it: frames in order, no more of them at once than they take."""

import asyncio
import time
from collections import Counter
from collections.abc import Container, Sequence
from typing import Any

from ropewalk.adapters.endpoints.broky import A_TURN, BrokyEndpoint
from ropewalk.adapters.endpoints.broky_pushes import Pushes
from ropewalk.adapters.endpoints.http_guard import KeyGuard
from ropewalk.core.stats import Stats
from ropewalk.engine.inbox import MOST_FRAMES, Inbox
from ropewalk.model.messages import Publication, Receipt, RemoteDisconnect, TransientRun
from ropewalk.model.sessions import ConnectRequest
from ropewalk.ports import Connection
from ropewalk.protocol.broky.frames import Format, Hello, Ping
from ropewalk.protocol.broky.runs import encode_run, run_of
from ropewalk.protocol.broky.tables import encode
from ropewalk.protocol.codec import SessionCodec
from ropewalk.protocol.proxies import Peer, TrustedProxies
from ropewalk.protocol.publications import PublicationLimits


class Socket:
    def setsockopt(self, *option: int) -> None:
        """Nobody asks for it."""


class Wire(asyncio.Transport):
    """A transport that knows whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True
        self.protocol: asyncio.Protocol | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return Socket()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def write(self, data: Any) -> None:
        """Nobody reads it."""


class Session:
    """One that handles nothing until it is asked to."""

    def __init__(self, connection: Connection) -> None:
        self.inbox = Inbox(connection.hold_reading)
        self.waiting = 0

    async def opened(self) -> bool:
        return True

    def receive(self, frame: bytes) -> None:
        self.inbox.put(frame)
        self.waiting += 1

    def take(self) -> bytes:
        self.waiting -= 1
        return self.inbox.take()


class Register:
    """A publisher that never suspends, and keeps every stream."""

    heard: Container[str] = ()
    places_by_name = False

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        self.payloads += [publication.payload for publication in publications]
        return [Receipt(each.stream, "epoch", len(self.payloads)) for each in publications]

    async def disconnect(self, order: RemoteDisconnect) -> int:
        return 0

    def is_ephemeral(self, stream: str) -> bool:
        return False

    def check_partition(self, stream: str, named: str) -> None:
        pass

    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> None:
        raise AssertionError("no stream is ephemeral")


class Endpoint:
    """One where everybody may push, and where everything is real but the sessions and what is registered."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.register = Register()
        self._endpoint = BrokyEndpoint(
            open_session=self._open_session,
            pushes=Pushes(self.register, PublicationLimits(), Stats(), time.time, instant=True),
            guards=(KeyGuard("", Counter()),),
            stats=Stats(),
            proxies=TrustedProxies(()),
            max_command=65536,
            write_timeout=1.0,
            shards=1,
            signed=None,
        )

    def _open_session(self, request: ConnectRequest, connection: Connection, codec: SessionCodec) -> Any:
        self.sessions.append(Session(connection))
        return self.sessions[-1]

    async def connected(self) -> tuple[Wire, asyncio.Protocol]:
        """After the Hello."""
        wire = Wire()
        self._endpoint.take_over(wire, encode(Hello()), Peer(""))
        await asyncio.sleep(0)
        assert wire.protocol is not None
        return wire, wire.protocol


async def test_a_session_gets_no_more_frames_than_it_takes_however_many_one_read_brought() -> None:
    endpoint = Endpoint()
    wire, connection = await endpoint.connected()
    [session] = endpoint.sessions
    pings = [encode(Ping(ref)) for ref in range(1, 1001)]
    connection.data_received(b"".join(pings))
    assert (session.waiting, wire.reads) == (MOST_FRAMES, False)
    taken: list[bytes] = []
    while len(taken) < len(pings):
        assert 0 < session.waiting <= MOST_FRAMES
        taken.append(session.take())
        await asyncio.sleep(0)
    assert taken == pings
    assert wire.reads


async def test_producers_that_push_much_take_turns() -> None:
    endpoint = Endpoint()
    producers = [await endpoint.connected() for _ in range(3)]
    pushes = [b"%d" % number for number in range(3 * A_TURN)]
    for _, connection in producers:
        connection.data_received(b"".join(encode_run(run_of(b"k", [each], format=Format.JSON)) for each in pushes))
    wires = [wire for wire, _ in producers]
    assert not any(wire.reads for wire in wires)
    registered = endpoint.register.payloads
    before = len(registered)
    assert before == len(producers) * A_TURN  # each of them as much as it may in one turn
    while not all(wire.reads for wire in wires):
        await asyncio.sleep(0)
        assert len(registered) - before <= A_TURN  # one of them in a turn of the event loop
        before = len(registered)
    assert sorted(registered) == sorted(pushes * len(producers))


async def test_producers_whose_pushes_are_refused_take_turns_sooner() -> None:
    endpoint = Endpoint()
    wire, connection = await endpoint.connected()
    connection.data_received(encode_run(run_of(b"", [b"x"], ref=1)) * A_TURN)
    assert not wire.reads
    turns = 0
    while not wire.reads:
        await asyncio.sleep(0)
        turns += 1
    assert turns > 10

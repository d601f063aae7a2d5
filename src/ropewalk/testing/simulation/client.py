"""A client of the simulation: the state machine of the Python client, over a connection that can be cut and can be slow.

Everything that the server sends is checked against the ledger before the client's own state sees it.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from msgspec.json import encode as to_json

from ropewalk.client.effects import Effect, End, Redial, Send
from ropewalk.client.state import ClientState
from ropewalk.model.closing import INTERNAL_ERROR
from ropewalk.model.commands import Leave, Unsubscribe
from ropewalk.model.history import GapReason
from ropewalk.model.messages import Position, Registered
from ropewalk.model.presence import Member
from ropewalk.model.sessions import ConnectRequest
from ropewalk.protocol.client_commands import encode
from ropewalk.protocol.handshake import client_options
from ropewalk.protocol.server_messages import (
    Data,
    HistoryConfirmed,
    HistoryRejected,
    ServerMessage,
    SubscriptionConfirmed,
    SubscriptionRefused,
    Welcome,
    decode,
)
from ropewalk.protocol.websocket_frame import CableCodec, readable
from ropewalk.testing.simulation.ledger import Anomaly, AnomalyKind, Ledger, Seen

if TYPE_CHECKING:
    from ropewalk.engine.node import Node
    from ropewalk.engine.session import Session
    from ropewalk.testing.simulation.unreliable import UnreliableLink

CODEC = CableCodec(tells_positions=True)

SETTLED = 4.0
"""Seconds after which a session must be in the store whatever goes wrong: several times what it takes to write it, also where
several tries fail one after another."""


class SimulatedConnection:
    """Implements `ports.Connection`. A slow one keeps what it is given until it is fast again.

    The network may fail so that only the client notices; to the server it looks alive then. `taken_over`: its session goes on
    over another one. `saw_loss`: the store has lost its data since it began.
    """

    direct = None

    def __init__(
        self, receive: Callable[["SimulatedConnection", bytes], None], closed: Callable[["SimulatedConnection", int], None]
    ) -> None:
        self._receive = receive
        self._closed = closed
        self._kept: list[bytes] = []
        self.session: Session | None = None
        self.node: Node | None = None
        self.lineage = 0  # of the session that the client was told of
        self.slow = False
        self.open = True
        self.taken_over = False
        self.saw_loss = False

    def write(self, data: bytes) -> None:
        if self.slow:
            self._kept.append(data)
        elif self.open:
            self._receive(self, data)

    def take(self) -> None:
        """The client reads again: what was kept arrives."""
        self.slow = False
        kept, self._kept = self._kept, []
        for data in kept:
            self.write(data)

    def close(self, code: int, text: str) -> None:
        if self.open:
            self.take()
            self.open = False
            self._closed(self, code)

    def cut(self) -> None:
        """The server notices that the client is gone."""
        if self.open:
            self.open = False
            assert self.session is not None
            self.session.lost()

    def pending(self) -> int:
        return sum(map(len, self._kept))

    async def ready(self) -> None:
        """At once."""

    def unsent(self) -> int:
        return self.pending()

    def hold_reading(self, hold: bool) -> None:
        """Commands of the simulation are few."""


def identifier_of(stream: str) -> str:
    return to_json({"channel": "$pubsub", "stream_name": stream}).decode()


class Observer(Protocol):
    """Who is told what clients see."""

    def restored(self, sid: str, taken_over: bool) -> None:
        """`taken_over`: its former connection still looked alive."""

    def failed(self, anomaly: Anomaly) -> None:
        """Raising would not do: the server contains what goes wrong with one connection."""


class SimulatedClient:
    """`ids` is how remote disconnects name it. `lineage` counts its sessions: a restored one is the same.

    `half_dead`: connections that it has lost and the server has not. `present`: streams in whose presence sets it is.
    """

    def __init__(self, name: str, ledger: Ledger, now: Callable[[], float], observer: Observer, sessions_ttl: float) -> None:
        self.name = name
        self.ids = to_json({"client": name}).decode()
        self.wanted: dict[str, str] = {}  # stream → identifier
        self.left: set[str] = set()  # identifiers that were unsubscribed from on this connection: answers may be under way
        self.present: set[str] = set()
        self.lineage = 0
        self.half_dead: list[SimulatedConnection] = []
        self._sessions_ttl = sessions_ttl
        self._ordered: set[int] = set()  # lineages of which somebody has ordered the end
        self._kicked: set[int] = set()  # those where the order was carried out
        self._barred = False  # it was, before the client connected
        self._link: UnreliableLink | None = None
        self._settles_at = 0.0
        self._unsettled_until = 0.0
        self._lost_at = 0.0
        self._unheard = False  # the server may have given it another sid that it never heard of
        self._ledger = ledger
        self._now = now
        self._observer = observer
        self._state = ClientState()
        self._seen: dict[str, Seen] = {}
        self._connection: SimulatedConnection | None = None

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def slow(self) -> bool:
        return self._connection is not None and self._connection.slow

    @property
    def _session(self) -> "Session | None":
        return self._connection.session if self._connection is not None else None

    def connect(self, node: "Node", link: "UnreliableLink") -> None:
        assert self._connection is None
        self._link = link
        self._barred = self.lineage in self._kicked
        connection = self._connection = SimulatedConnection(self._receive, self._closed)
        connection.node = node
        params = {"sid": self._state.sid, "client": self.name, "positions": "1"}
        options = client_options({}, params)
        request = ConnectRequest("http://simulation/cable", "/cable", {}, params, extended=True, options=options)
        connection.session = node.open(request, connection, CODEC)

    def cut(self) -> None:
        """The network fails: both sides notice."""
        connection = self._connection
        self._lose()
        if connection is not None:
            connection.cut()

    def vanish(self) -> None:
        """The network fails: only the client notices."""
        connection = self._connection
        self._unheard = self._unheard or not self._state.welcomed
        self._lose()
        if connection is not None and connection.open:
            self.half_dead.append(connection)

    def forget_half_dead(self) -> None:
        """The server has waited long enough for those that nobody has taken over."""
        for connection in self.half_dead:
            if not connection.taken_over:
                connection.cut()
        self.half_dead = [connection for connection in self.half_dead if connection.open]

    def node_died(self, node: "Node") -> None:
        """The other side is gone and notices nothing."""
        for connection in self.half_dead:
            connection.open = connection.open and connection.node is not node
        if self._connection is not None and self._connection.node is node:
            self._connection.open = False
            self._lose()

    def order_end(self) -> int:
        """Somebody orders the end of its session. Returns its lineage, for `kicked`."""
        self._ordered.add(self.lineage)
        return self.lineage

    def kicked(self, lineage: int) -> None:
        """Whoever connects from now on does not get that session. One that was restored already ends soon: its node may have
        missed the order, and hear of it from the store."""
        self._kicked.add(lineage)

    def store_lost(self, settles_at: float) -> None:
        """The store has lost its data: sessions that are connected nowhere are lost, and so are orders that were carried out.
        Nodes write what lives on them again, at the latest by then."""
        self._kicked.clear()
        self._barred = False
        for connection in self.half_dead:  # nobody may know any more that its session was taken over
            connection.taken_over, connection.saw_loss = False, True
        if self._connection is not None:
            self._connection.saw_loss = True
        self.store_away(settles_at)

    def store_away(self, settles_at: float) -> None:
        """Until then its session may not be written as it is; one that comes back meanwhile is let in with a new session."""
        self._settles_at = self._unsettled_until = max(self._unsettled_until, settles_at)

    def slow_down(self) -> None:
        if self._connection is not None and self._session is not None and not self._connection.slow:
            self._connection.slow = True
            self._session.writing_paused()

    def speed_up(self) -> None:
        connection, session = self._connection, self._session
        if connection is not None and session is not None and connection.slow:
            connection.take()
            if connection.open:
                session.writing_resumed()

    def may_subscribe(self, stream: str) -> bool:
        return stream not in self.wanted and identifier_of(stream) not in self.left

    def subscribe(self, stream: str) -> None:
        identifier = self.wanted[stream] = identifier_of(stream)
        self._seen[stream] = Seen()
        self._carry_out(self._state.subscribe(identifier, self._now()))

    def unsubscribe(self, stream: str) -> None:
        del self._seen[stream]
        self.present.discard(stream)
        self._carry_out(self._state.unsubscribe(self.wanted.pop(stream)))

    def join(self, stream: str) -> None:
        self.present.add(stream)
        self._carry_out(self._state.join(self.wanted[stream], Member(self.name)))

    def leave(self, stream: str) -> None:
        self.present.discard(stream)
        self._carry_out(self._state.leave(self.wanted[stream]))

    def check_end(self, tip: Callable[[str], Position]) -> None:
        if any(connection.open and connection.taken_over for connection in self.half_dead):
            raise Anomaly(AnomalyKind.SESSION_TWICE, f"a former connection of {self.name} is still open")
        if self.lineage in self._kicked:
            raise Anomaly(AnomalyKind.KICKED_SESSION_BACK, f"{self.name} was never ended")
        for stream in self.wanted:
            self._ledger.check_end(self.name, stream, self._seen[stream], tip(stream))

    # --- what the server sends ---

    def _receive(self, connection: SimulatedConnection, data: bytes) -> None:
        try:
            self._check(connection, data)
        except Anomaly as anomaly:
            self._observer.failed(anomaly)

    def _check(self, connection: SimulatedConnection, data: bytes) -> None:
        for text in readable(data).split("\n"):
            if connection is not self._connection:  # it was lost by what came before
                return
            message = decode(text.encode())
            if isinstance(message, Welcome):
                self._welcomed(message)
            else:
                self._look_at(message)
                self._carry_out(self._state.receive(message, self._now()))

    def _look_at(self, message: ServerMessage) -> None:
        match message:
            # Before it has begun, a message is of an earlier subscription to the same stream.
            case Data(stream=stream) if message.offset and stream in self._seen and self._seen[stream].begun:
                got = Registered(stream, message.payload, 0.0, message.epoch, message.offset)
                self._ledger.deliver(self.name, self._seen[stream], got)
            case SubscriptionConfirmed(_, tips) | HistoryConfirmed(_, tips):
                self._begin(tips)
            case SubscriptionRefused(identifier):
                for stream in [stream for stream, name in self.wanted.items() if name == identifier]:
                    del self.wanted[stream], self._seen[stream]
                    self.present.discard(stream)
            case HistoryRejected(streams=gaps):
                for stream, gap in gaps.items():
                    if stream in self._seen and self._seen[stream].begun and gap.reason != GapReason.PARTIAL:
                        self._seen[stream].told.append(Position(gap.epoch, gap.oldest))

    def _welcomed(self, welcome: Welcome) -> None:
        former, time = self._state.sid, asyncio.get_running_loop().time()
        if welcome.restored:
            self._check_restored(former)
        elif former and self._expects_its_session(time):
            raise Anomaly(
                AnomalyKind.LOST_SESSION, f"{self.name} came back after {time - self._lost_at:.1f} s, and nobody knew it"
            )
        else:
            self.lineage += 1
        assert self._connection is not None
        self._connection.lineage = self.lineage
        self._settles_at, self._unheard = max(time + SETTLED, self._unsettled_until), False
        self._carry_out(self._state.receive(welcome, self._now()))
        if welcome.restored:
            # That it left may have been lost on the way.
            absent = [name for stream, name in self.wanted.items() if stream not in self.present]
            self._carry_out([Send(Leave(name)) for name in absent if name in welcome.restored_ids])

    def _check_restored(self, former: str) -> None:
        if self._barred:
            raise Anomaly(AnomalyKind.KICKED_SESSION_BACK, f"{self.name} came back with {former}")
        assert self._connection is not None
        same = [each for each in self.half_dead if each.open and each.lineage == self.lineage]
        self._observer.restored(former, bool(same))
        for connection in same:  # the order to close it may have been lost
            connection.taken_over = not (self._connection.saw_loss or connection.saw_loss)

    def _expects_its_session(self, time: float) -> bool:
        """It was in the store when the connection was lost, and its time is not over."""
        if self._unheard or self.lineage in self._ordered:
            return False
        return self._settles_at <= self._lost_at and time - self._lost_at < self._sessions_ttl - SETTLED

    def _begin(self, tips: dict[str, Position]) -> None:
        for stream, tip in tips.items():
            if stream in self._seen and not self._seen[stream].begun:
                self._seen[stream] = Seen(tip.epoch, tip.offset, begun=True)

    def _closed(self, connection: SimulatedConnection, code: int) -> None:
        if code == INTERNAL_ERROR.code:
            self._observer.failed(Anomaly(AnomalyKind.FAILED, f"{self.name} was closed with {code}"))
        if connection is self._connection:
            self._lose()
        if connection.session is not None:
            connection.session.lost()

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(command) if self._session is not None:
                    if isinstance(command, Unsubscribe):
                        self.left.add(command.identifier)
                    self._session.receive(encode(command))
                case Redial() | End():
                    self._lose()

    def _lose(self) -> None:
        if self._state.welcomed:
            self._lost_at = asyncio.get_running_loop().time()
            # A node that is stalled writes nothing.
            self._settles_at = max(self._settles_at, self._link.stalled_until + SETTLED if self._link else 0.0)
        self._unheard = self._unheard or (self.slow and not self._state.welcomed)
        self._connection = None
        self.left.clear()
        self._state.lost()

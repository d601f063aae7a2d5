"""A simulated client: the state machine of the Python client over a connection that can be cut and can be slow.

Every message from the server is checked against the ledger before the state machine receives it.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from msgspec.json import encode as to_json

from ropewalk.client.codec import CableClientCodec
from ropewalk.client.effects import Effect, End, Redial, Send
from ropewalk.client.state import ClientState
from ropewalk.client.track import Track
from ropewalk.model.closing import INTERNAL_ERROR
from ropewalk.model.commands import Leave, Unsubscribe
from ropewalk.model.messages import Position, Registered
from ropewalk.model.presence import Member
from ropewalk.model.sessions import ConnectRequest
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

CODEC = CableCodec(reports_positions=True)
CLIENT_CODEC = CableClientCodec()

MAX_WRITE_SECONDS = 4.0
"""A session is in the store after this time at the latest: several times the duration of a write, including failed attempts."""


class SimulatedConnection:
    """Implements `ports.Connection`. While the client is slow, the connection buffers.

    If only the client notices a network failure, the connection is half-open: the server still considers it alive.
    `taken_over`: its session continues on another connection. `saw_loss`: the store has lost its data since it opened.
    """

    direct = None

    def __init__(
        self, receive: Callable[["SimulatedConnection", bytes], None], closed: Callable[["SimulatedConnection", int], None]
    ) -> None:
        self._receive = receive
        self._closed = closed
        self._unread: list[bytes] = []
        self.session: Session | None = None
        self.node: Node | None = None
        self.lineage = 0  # of the session in the client's last welcome
        self.slow = False
        self.open = True
        self.taken_over = False
        self.saw_loss = False

    def write(self, data: bytes) -> None:
        if self.slow:
            self._unread.append(data)
        elif self.open:
            self._receive(self, data)

    def resume_reading(self) -> None:
        """The client reads again and receives the buffered data."""
        self.slow = False
        unread, self._unread = self._unread, []
        for data in unread:
            self.write(data)

    def close(self, code: int, text: str) -> None:
        if self.open:
            self.resume_reading()
            self.open = False
            self._closed(self, code)

    def cut(self) -> None:
        """The server detects that the connection is lost."""
        if self.open:
            self.open = False
            assert self.session is not None
            self.session.connection_lost()

    def pending(self) -> int:
        return sum(map(len, self._unread))

    async def wait_ready(self) -> None:
        """Returns immediately."""

    def unsent(self) -> int:
        return self.pending()

    def hold_reading(self, hold: bool) -> None:
        """Not needed: simulated clients send few commands."""


def pubsub_identifier(stream: str) -> str:
    return to_json({"channel": "$pubsub", "stream_name": stream}).decode()


class Observer(Protocol):
    """Receives the events of all clients."""

    def restored(self, sid: str, taken_over: bool) -> None:
        """`taken_over`: the server still considered its former connection alive."""

    def record(self, event: str, data: bytes = b"") -> None:
        """An event of the history, with its payload."""

    def failed(self, anomaly: Anomaly) -> None:
        """Called instead of raising, because the server contains the errors of a connection."""


class SimulatedClient:
    """A client that subscribes, joins and reconnects.

    `ids`: its identity, for remote disconnects. `lineage`: the number of its session; a restored session keeps its number.
    `half_open`: connections that only the client has lost. `present`: streams whose presence sets it is in.
    """

    def __init__(self, name: str, ledger: Ledger, now: Callable[[], float], observer: Observer, sessions_ttl: float) -> None:
        self.name = name
        self.ids = to_json({"client": name}).decode()
        self.wanted: dict[str, str] = {}  # stream → identifier
        self.unsubscribed: set[str] = set()  # identifiers unsubscribed on this connection: late answers are possible
        self.present: set[str] = set()
        self.lineage = 0
        self.half_open: list[SimulatedConnection] = []
        self._sessions_ttl = sessions_ttl
        self._kick_requested: set[int] = set()  # lineages with a remote disconnect
        self._kicked: set[int] = set()  # lineages whose remote disconnect has succeeded
        self._kicked_before_connect = False  # the session was kicked before this connection opened
        self._link: UnreliableLink | None = None
        self._written_at = 0.0
        self._unwritten_until = 0.0
        self._lost_at = 0.0
        self._welcome_lost = False  # the server may have assigned a sid that the client never received
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
        self._kicked_before_connect = self.lineage in self._kicked
        connection = self._connection = SimulatedConnection(self._receive, self._closed)
        connection.node = node
        params = {"sid": self._state.sid, "client": self.name, "positions": "1"}
        options = client_options({}, params)
        request = ConnectRequest("http://simulation/cable", "/cable", {}, params, extended=True, options=options)
        connection.session = node.open(request, connection, CODEC)

    def cut(self) -> None:
        """The connection fails, and both sides notice."""
        connection = self._connection
        self._drop_connection()
        if connection is not None:
            connection.cut()

    def vanish(self) -> None:
        """The connection fails, and only the client notices."""
        connection = self._connection
        self._welcome_lost = self._welcome_lost or not self._state.welcomed
        self._drop_connection()
        if connection is not None and connection.open:
            self.half_open.append(connection)

    def close_half_open(self) -> None:
        """The server times out the half-open connections whose sessions were not taken over."""
        for connection in self.half_open:
            if not connection.taken_over:
                connection.cut()
        self.half_open = [connection for connection in self.half_open if connection.open]

    def node_died(self, node: "Node") -> None:
        """Lose the connections to this node. The node does not notice."""
        for connection in self.half_open:
            connection.open = connection.open and connection.node is not node
        if self._connection is not None and self._connection.node is node:
            self._connection.open = False
            self._drop_connection()

    def request_kick(self) -> int:
        """A remote disconnect of its session starts. Returns the lineage, for `kicked`."""
        self._kick_requested.add(self.lineage)
        return self.lineage

    def kicked(self, lineage: int) -> None:
        """A remote disconnect has succeeded: connections from now on must not restore that session. If it was restored before,
        it ends soon, because its node may have missed the request and learns of it from the store."""
        self._kicked.add(lineage)

    def store_lost(self, written_at: float) -> None:
        """The store has lost its data: sessions without a connection, and successful remote disconnects. Nodes rewrite their
        live sessions by `written_at`."""
        self._kicked.clear()
        self._kicked_before_connect = False
        for connection in self.half_open:  # the store may have lost that its session was taken over
            connection.taken_over, connection.saw_loss = False, True
        if self._connection is not None:
            self._connection.saw_loss = True
        self.store_away(written_at)

    def store_away(self, written_at: float) -> None:
        """Until `written_at` the store may not have its session: a client that reconnects before may get a new one."""
        self._written_at = self._unwritten_until = max(self._unwritten_until, written_at)

    def slow_down(self) -> None:
        if self._connection is not None and self._session is not None and not self._connection.slow:
            self._connection.slow = True
            self._session.pause_writing()

    def speed_up(self) -> None:
        connection, session = self._connection, self._session
        if connection is not None and session is not None and connection.slow:
            connection.resume_reading()
            if connection.open:
                session.resume_writing()

    def may_subscribe(self, stream: str) -> bool:
        return stream not in self.wanted and pubsub_identifier(stream) not in self.unsubscribed

    def subscribe(self, stream: str) -> None:
        identifier = self.wanted[stream] = pubsub_identifier(stream)
        self._seen[stream] = Seen()
        self._execute(self._state.subscribe(identifier, Track(), self._now()))

    def unsubscribe(self, stream: str) -> None:
        del self._seen[stream]
        self.present.discard(stream)
        self._execute(self._state.unsubscribe(self.wanted.pop(stream)))

    def join(self, stream: str) -> None:
        self.present.add(stream)
        self._execute(self._state.join(self.wanted[stream], Member(self.name)))

    def leave(self, stream: str) -> None:
        self.present.discard(stream)
        self._execute(self._state.leave(self.wanted[stream]))

    def check_end(self, tip: Callable[[str], Position]) -> None:
        if any(connection.open and connection.taken_over for connection in self.half_open):
            raise Anomaly(AnomalyKind.SESSION_TWICE, f"a former connection of {self.name} is still open")
        if self.lineage in self._kicked:
            raise Anomaly(AnomalyKind.KICKED_SESSION_BACK, f"the session of {self.name} did not end")
        for stream in self.wanted:
            self._ledger.check_end(self.name, stream, self._seen[stream], tip(stream))

    # --- messages from the server ---

    def _receive(self, connection: SimulatedConnection, data: bytes) -> None:
        self._observer.record(f"{self.name} receives", data)
        try:
            self._handle(connection, data)
        except Anomaly as anomaly:
            self._observer.failed(anomaly)

    def _handle(self, connection: SimulatedConnection, data: bytes) -> None:
        for text in readable(data).split("\n"):
            if connection is not self._connection:  # an earlier message of this batch closed it
                return
            message = decode(text.encode())
            if isinstance(message, Welcome):
                self._welcomed(message)
            else:
                self._check_message(message)
                self._execute(self._state.receive(message, self._now()))

    def _check_message(self, message: ServerMessage) -> None:
        match message:
            # A message before the confirmation belongs to an earlier subscription to the same stream.
            case Data(stream=stream) if message.offset and stream in self._seen and self._seen[stream].confirmed:
                got = Registered(stream, message.payload, 0.0, message.epoch, message.offset)
                self._ledger.deliver(self.name, self._seen[stream], got)
            case SubscriptionConfirmed(_, tips) | HistoryConfirmed(_, tips):
                self._confirm(tips)
            case SubscriptionRefused(identifier):
                for stream in [stream for stream, name in self.wanted.items() if name == identifier]:
                    del self.wanted[stream], self._seen[stream]
                    self.present.discard(stream)
            case HistoryRejected(streams=gaps):
                for stream, gap in gaps.items():
                    if stream in self._seen and self._seen[stream].confirmed:
                        self._ledger.report_gap(self.name, stream, self._seen[stream], gap)

    def _welcomed(self, welcome: Welcome) -> None:
        former, time = self._state.sid, asyncio.get_running_loop().time()
        if welcome.restored:
            self._check_restored(former)
        elif former and self._session_must_be_restored(time):
            raise Anomaly(
                AnomalyKind.LOST_SESSION, f"{self.name} reconnected after {time - self._lost_at:.1f} s and got a new session"
            )
        else:
            self.lineage += 1
        assert self._connection is not None
        self._connection.lineage = self.lineage
        self._written_at, self._welcome_lost = max(time + MAX_WRITE_SECONDS, self._unwritten_until), False
        self._execute(self._state.receive(welcome, self._now()))
        if welcome.restored:
            # An earlier leave may have been lost with the connection.
            absent = [name for stream, name in self.wanted.items() if stream not in self.present]
            self._execute([Send(Leave(name)) for name in absent if name in welcome.restored_ids])

    def _check_restored(self, former: str) -> None:
        if self._kicked_before_connect:
            raise Anomaly(AnomalyKind.KICKED_SESSION_BACK, f"{self.name} restored {former}")
        assert self._connection is not None
        former_connections = [each for each in self.half_open if each.open and each.lineage == self.lineage]
        self._observer.restored(former, bool(former_connections))
        for connection in former_connections:  # the request to close it may have been lost
            connection.taken_over = not (self._connection.saw_loss or connection.saw_loss)

    def _session_must_be_restored(self, time: float) -> bool:
        """The store had it when the connection was lost, and it has not expired."""
        if self._welcome_lost or self.lineage in self._kick_requested:
            return False
        return self._written_at <= self._lost_at and time - self._lost_at < self._sessions_ttl - MAX_WRITE_SECONDS

    def _confirm(self, tips: dict[str, Position]) -> None:
        for stream, tip in tips.items():
            if stream in self._seen and not self._seen[stream].confirmed:
                self._seen[stream] = Seen(tip.epoch, tip.offset, confirmed=True)

    def _closed(self, connection: SimulatedConnection, code: int) -> None:
        self._observer.record(f"{self.name} is closed with {code}")
        if code == INTERNAL_ERROR.code:
            self._observer.failed(Anomaly(AnomalyKind.FAILED, f"{self.name} was closed with {code}"))
        if connection is self._connection:
            self._drop_connection()
        if connection.session is not None:
            connection.session.connection_lost()

    def _execute(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(command) if self._session is not None:
                    if isinstance(command, Unsubscribe):
                        self.unsubscribed.add(command.identifier)
                    self._session.receive(CLIENT_CODEC.encode(command, 0))
                case Redial() | End():
                    self._drop_connection()

    def _drop_connection(self) -> None:
        if self._state.welcomed:
            self._lost_at = asyncio.get_running_loop().time()
            # A stalled node writes nothing.
            self._written_at = max(self._written_at, self._link.stalled_until + MAX_WRITE_SECONDS if self._link else 0.0)
        self._welcome_lost = self._welcome_lost or (self.slow and not self._state.welcomed)
        self._connection = None
        self.unsubscribed.clear()
        self._state.lost()

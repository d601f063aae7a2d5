"""A client of the simulation: the state machine of the Python client, over a connection that can be cut and can be slow.

Everything that the server sends is checked against the ledger before the client's own state sees it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from msgspec.json import encode as to_json

from ropewalk.client.effects import Effect, End, Redial, Send
from ropewalk.client.state import ClientState
from ropewalk.model.closing import INTERNAL_ERROR
from ropewalk.model.commands import Unsubscribe
from ropewalk.model.history import GapReason
from ropewalk.model.messages import Position, Registered
from ropewalk.model.sessions import ConnectRequest
from ropewalk.protocol.client_commands import encode
from ropewalk.protocol.handshake import client_options
from ropewalk.protocol.server_messages import Data, HistoryConfirmed, HistoryRejected, SubscriptionConfirmed, Welcome, decode
from ropewalk.protocol.websocket_frame import CableCodec, readable
from ropewalk.testing.simulation.ledger import Anomaly, Kind, Ledger, Seen

if TYPE_CHECKING:
    from ropewalk.engine.node import Node
    from ropewalk.engine.session import Session

CODEC = CableCodec(tells_positions=True)


class Connection:
    """Implements `ports.Connection`. A slow one keeps what it is given until it is fast again."""

    def __init__(self, receive: Callable[["Connection", bytes], None], closed: Callable[["Connection", int], None]) -> None:
        self._receive = receive
        self._closed = closed
        self._kept: list[bytes] = []
        self.slow = False
        self.open = True

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

    def restored(self) -> None: ...
    def failed(self, anomaly: Anomaly) -> None:
        """Raising would not do: the server contains what goes wrong with one connection."""


class SimulatedClient:
    """`ids` is how remote disconnects name it."""

    def __init__(self, name: str, ledger: Ledger, now: Callable[[], float], observer: Observer) -> None:
        self.name = name
        self.ids = to_json({"client": name}).decode()
        self.wanted: dict[str, str] = {}  # stream → identifier
        self.left: set[str] = set()  # identifiers that were unsubscribed from on this connection: answers may be under way
        self.kicked: set[str] = set()
        self.node: Node | None = None
        self._ledger = ledger
        self._now = now
        self._observer = observer
        self._state = ClientState()
        self._seen: dict[str, Seen] = {}
        self._session: Session | None = None
        self._connection: Connection | None = None

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def slow(self) -> bool:
        return self._connection is not None and self._connection.slow

    def connect(self, node: "Node") -> None:
        assert self._connection is None
        self.node = node
        self._connection = Connection(self._receive, self._closed)
        params = {"sid": self._state.sid, "client": self.name, "positions": "1"}
        options = client_options({}, params)
        request = ConnectRequest("http://simulation/cable", "/cable", {}, params, extended=True, options=options)
        self._session = node.open(request, self._connection, CODEC)

    def cut(self) -> None:
        """The network fails: both sides notice."""
        session, connection = self._session, self._connection
        self._lose()
        if session is not None and connection is not None and connection.open:
            connection.open = False
            session.lost()

    def node_died(self) -> None:
        """The other side is gone and notices nothing."""
        if self._connection is not None:
            self._connection.open = False
        self._lose()

    def kick(self) -> None:
        """From now on its present session may not be restored."""
        if self._state.sid:
            self.kicked.add(self._state.sid)

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
        self._carry_out(self._state.unsubscribe(self.wanted.pop(stream)))

    def check_end(self, tip: Callable[[str], Position]) -> None:
        for stream in self.wanted:
            self._ledger.check_end(self.name, stream, self._seen[stream], tip(stream))

    # --- what the server sends ---

    def _receive(self, connection: Connection, data: bytes) -> None:
        try:
            self._check(connection, data)
        except Anomaly as anomaly:
            self._observer.failed(anomaly)

    def _check(self, connection: Connection, data: bytes) -> None:
        for text in readable(data).split("\n"):
            if connection is not self._connection:  # it was lost by what came before
                return
            message = decode(text.encode())
            match message:
                case Welcome(restored=True) if self._state.sid in self.kicked:
                    raise Anomaly(Kind.KICKED_SESSION_BACK, f"{self.name} came back with {self._state.sid}")
                case Welcome(restored=True):
                    self._observer.restored()
                # Before it has begun, a message is of an earlier subscription to the same stream.
                case Data(stream=stream) if message.offset and stream in self._seen and self._seen[stream].begun:
                    got = Registered(stream, message.payload, 0.0, message.epoch, message.offset)
                    self._ledger.deliver(self.name, self._seen[stream], got)
                case SubscriptionConfirmed(_, tips) | HistoryConfirmed(_, tips):
                    self._begin(tips)
                case HistoryRejected(streams=gaps):
                    for stream, gap in gaps.items():
                        if stream in self._seen and self._seen[stream].begun and gap.reason != GapReason.PARTIAL:
                            self._seen[stream].told.append(Position(gap.epoch, gap.oldest))
            self._carry_out(self._state.receive(message, self._now()))

    def _begin(self, tips: dict[str, Position]) -> None:
        for stream, tip in tips.items():
            if stream in self._seen and not self._seen[stream].begun:
                self._seen[stream] = Seen(tip.epoch, tip.offset, begun=True)

    def _closed(self, connection: Connection, code: int) -> None:
        if code == INTERNAL_ERROR.code:
            self._observer.failed(Anomaly(Kind.FAILED, f"{self.name} was closed with {code}"))
        session = self._session
        if connection is self._connection:
            self._lose()
        if session is not None:
            session.lost()

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
        self._session = self._connection = None
        self.left.clear()
        self._state.lost()

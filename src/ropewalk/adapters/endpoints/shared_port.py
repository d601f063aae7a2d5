"""One port for all protocols. Looks at the first bytes of a connection and hands the connection to its protocol.

A WebSocket upgrade may also come later, on a kept-alive HTTP connection behind a proxy; then the HTTP
handler hands the connection over.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from socket import socket
from typing import Protocol, cast

from ropewalk.adapters.endpoints.admission import ConnectionAdmission, ConnectionLimits
from ropewalk.adapters.endpoints.broky import BrokyEndpoint
from ropewalk.adapters.endpoints.head_timeouts import HeadTimeouts
from ropewalk.adapters.endpoints.http_connection import MAX_HEAD_BYTES, HttpConnection, HttpContext
from ropewalk.adapters.endpoints.http_requests import HttpRequest
from ropewalk.adapters.endpoints.http_responses import HttpResponse, refusal
from ropewalk.adapters.endpoints.routes import HttpRoute, HttpRouter
from ropewalk.adapters.endpoints.turns import LoopTurns, PacedStarts
from ropewalk.adapters.endpoints.websocket import WebSocketEndpoint
from ropewalk.model.errors import BadRequest
from ropewalk.model.refusals import Refusal
from ropewalk.protocol.broky.codec import error
from ropewalk.protocol.broky.frames import Reason
from ropewalk.protocol.broky.tables import IDENTIFIER, MIN_FRAME_BYTES
from ropewalk.protocol.handshake import HEAD_END
from ropewalk.protocol.proxies import Peer, TrustedProxies, split_proxy_header

AHEAD_LIMIT = 4 * 1024
"""Bytes that a WebSocket client may send before it has our response to its upgrade. They are all handled at once."""

STOP_SECONDS = 60.0

UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*websocket", re.IGNORECASE)
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 20\r\nRetry-After: 5\r\nConnection: close\r\n\r\ntoo many connections"
)
NO_TLS = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 28\r\nConnection: close\r\n\r\nthis port does not speak TLS"
AHEAD = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 32\r\nConnection: close\r\n\r\nframes came before the handshake"


class Match(Enum):
    """Whether the first bytes of a connection match a protocol."""

    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"  # more bytes are needed


class PortProtocol(Protocol):
    @property
    def busy(self) -> bytes:
        """The answer to a client when the connection limit is reached."""

    def detect(self, data: bytes) -> Match:
        """`data` is all input so far. Called again with more while it is undecided."""

    def may_enter(self) -> bool:
        """Whether the connection limit permits one more. Counts a refusal."""

    def enter(self, transport: asyncio.Transport, data: bytes, peer: Peer, sock: socket | None) -> None:
        """Take over the connection, with its input so far; or answer and close it. `sock`: the transport's, without TLS."""


class BrokyOnPort:
    """Its frames begin with a size whose fourth byte is zero, unlike text, and have an identifier at a fixed offset."""

    busy = error(Reason.OVERFLOW, "too many connections", reconnect=True)

    def __init__(self, endpoint: BrokyEndpoint, admission: ConnectionAdmission) -> None:
        self._endpoint = endpoint
        self._admission = admission

    def detect(self, data: bytes) -> Match:
        if data[3:4].strip(b"\0"):
            return Match.NO
        if len(data) < MIN_FRAME_BYTES:
            return Match.UNDECIDED
        return Match.YES if data.startswith(IDENTIFIER, MIN_FRAME_BYTES - len(IDENTIFIER)) else Match.NO

    def may_enter(self) -> bool:
        return self._admission.client_may_enter()

    def enter(self, transport: asyncio.Transport, data: bytes, peer: Peer, sock: socket | None) -> None:
        self._endpoint.take_over(transport, data, peer, sock)


class TlsOnPort:
    """Rejects a TLS handshake inside the connection at once, usually sent because the port has no TLS. The client would wait
    for the handshake and could not distinguish that from a network failure."""

    busy = BUSY

    def __init__(self, admission: ConnectionAdmission) -> None:
        self._admission = admission

    def detect(self, data: bytes) -> Match:
        return Match.YES if data.startswith(b"\x16\x03") else Match.NO

    def may_enter(self) -> bool:
        return self._admission.http_may_enter()

    def enter(self, transport: asyncio.Transport, data: bytes, peer: Peer, sock: socket | None) -> None:
        transport.write(NO_TLS)
        transport.close()


class WebSocketOnPort:
    """Requests that ask for an upgrade go to picows."""

    busy = BUSY

    def __init__(self, endpoint: WebSocketEndpoint, admission: ConnectionAdmission) -> None:
        self._endpoint = endpoint
        self._admission = admission

    def detect(self, data: bytes) -> Match:
        decided = _detect_head(data)
        return decided if decided is not Match.YES or wants_websocket(data[: data.find(HEAD_END)]) else Match.NO

    def may_enter(self) -> bool:
        return self._admission.client_may_enter()

    def enter(self, transport: asyncio.Transport, data: bytes, peer: Peer, sock: socket | None) -> None:
        if len(data) > data.find(HEAD_END) + len(HEAD_END) + AHEAD_LIMIT:
            transport.write(AHEAD)
            transport.close()
            return
        self._endpoint.take_over(transport, data, peer)


class HttpOnPort:
    """All other input. If it is not HTTP, the parser rejects it. So this is the last row of the table."""

    busy = BUSY

    def __init__(
        self, admission: ConnectionAdmission, head_timeouts: HeadTimeouts, write_timeout: float, proxies: TrustedProxies
    ) -> None:
        self._admission = admission
        self._context = HttpContext(HttpRouter(), set(), head_timeouts, LoopTurns(), admission.refusals, write_timeout, proxies)

    @property
    def connections(self) -> int:
        return len(self._context.connections)

    def serve(self, routes: Iterable[HttpRoute]) -> None:
        """Add routes to the table. Called before the first connection."""
        self._context.router.add(routes)

    async def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Close all connections. Handlers may finish for so long, then they are cancelled."""
        tasks = [task for connection in list(self._context.connections) if (task := connection.stop()) is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for connection in list(self._context.connections):
            if connection.transport is not None:
                connection.transport.close()

    def detect(self, data: bytes) -> Match:
        return _detect_head(data)

    def may_enter(self) -> bool:
        return self._admission.http_may_enter()

    def enter(self, transport: asyncio.Transport, data: bytes, peer: Peer, sock: socket | None) -> None:
        connection = HttpConnection(self._context, peer, self._admission.idle_timeout())
        transport.set_protocol(connection)
        connection.connection_made(transport)
        connection.data_received(data)


def _detect_head(data: bytes) -> Match:
    """A whole head of a request, and not too long."""
    end = data.find(HEAD_END)
    if end < 0:
        return Match.UNDECIDED
    return Match.YES if end <= MAX_HEAD_BYTES else Match.NO


def wants_websocket(head: bytes) -> bool:
    """Whether the request asks for an upgrade. picows checks the handshake itself."""
    return UPGRADE.search(head) is not None


HEAD_TIMEOUT = 5.0
TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"
TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
NO_PROXY_HEADER = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 24\r\nConnection: close\r\n\r\na PROXY header is needed"


class SharedPort:
    """Creates the protocol of each accepted connection, within the connection limits.

    Args:
        proxy_header: connections of trusted proxies begin with a PROXY header.
        broky: None disables Broky on this port.

    Attributes:
        protocols: the table of protocols. The first one that does not match with NO decides.
    """

    def __init__(
        self,
        websocket: WebSocketEndpoint,
        limits: ConnectionLimits,
        refusals: Counter[str],
        proxies: TrustedProxies,
        proxy_header: bool = False,
        broky: BrokyEndpoint | None = None,
    ) -> None:
        self.admission = ConnectionAdmission(limits, refusals, self._client_connections, lambda: self.http.connections)
        self._endpoint = websocket
        self.head_timeouts = HeadTimeouts(HEAD_TIMEOUT)
        self.http = HttpOnPort(self.admission, self.head_timeouts, limits.write_timeout, proxies)
        self.broky = broky
        self.protocols: Sequence[PortProtocol] = (
            TlsOnPort(self.admission),
            WebSocketOnPort(websocket, self.admission),
            self.http,
        )
        if broky is not None:
            self.protocols = (BrokyOnPort(broky, self.admission), *self.protocols)
        self.proxies = proxies
        self.proxy_header = proxy_header
        self.handshakes = PacedStarts(LoopTurns())

    def _client_connections(self) -> int:
        return self._endpoint.connections + (self.broky.connections if self.broky is not None else 0)

    def detector(self) -> "ProtocolDetector":
        return ProtocolDetector(self)

    async def upgrade(self, request: HttpRequest) -> HttpResponse:
        """The handler of the WebSocket paths, for requests on a kept-alive HTTP connection."""
        head = b"\r\n".join(b"%b: %b" % field for field in request.fields)
        connection = request.exchange
        if not wants_websocket(b"\r\n" + head) or not isinstance(connection, HttpConnection):
            return HttpResponse(400, b"this is a WebSocket endpoint; connect with a WebSocket client", TEXT)
        if not self.admission.client_may_enter():
            return refusal(503, "too many connections", {"Retry-After": "5"})
        if connection.transport is not None:
            transport, ahead = connection.detach()
            if len(ahead) > AHEAD_LIMIT:
                transport.abort()
                return HttpResponse()
            line = f"{request.method} {request.target} HTTP/1.1\r\n".encode()
            self._endpoint.take_over(transport, line + head + b"\r\n\r\n" + ahead, connection.peer)
        return HttpResponse()


class ProtocolDetector(asyncio.Protocol):
    """A connection whose protocol is not known yet. Created by the accept, before the TLS handshake. It drops all references
    when it hands the connection over, because uvloop keeps it for the lifetime of the connection."""

    __slots__ = (
        "_dropped",
        "_head",
        "_matched",
        "_peer",
        "_shared_port",
        "_transport",
        "_waits_for_proxy_header",
        "accepting",
        "entering",
        "sock",
    )

    def __init__(self, shared_port: SharedPort) -> None:
        self._shared_port = shared_port
        self._head = b""
        self._peer = Peer("")
        self._waits_for_proxy_header = False
        self._matched = False  # the WebSocket handshake waits for its turn
        self._transport: asyncio.Transport | None = None
        self.accepting: asyncio.Task[None] | None = None  # the TLS handshake
        self.entering: Coroutine[object, None, object] | None = None  # without TLS
        self.sock: socket | None = None  # without TLS
        self._dropped = False
        shared_port.admission.arrived(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._dropped:
            self._transport.abort()
            return
        peer = transport.get_extra_info("peername")
        self._peer = Peer(peer[0] if peer else "")
        self._waits_for_proxy_header = self._shared_port.proxy_header and self._shared_port.proxies.trusts(self._peer.address)
        self._shared_port.head_timeouts.begin(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.finish()

    def data_received(self, data: bytes) -> None:
        self._head += data
        if self._matched:
            return
        if self._waits_for_proxy_header and not self._take_proxy_header():
            return
        for protocol in self._shared_port.protocols:
            match = protocol.detect(self._head)
            if match is Match.YES:
                if isinstance(protocol, WebSocketOnPort):
                    self._wait_for_turn(protocol)
                else:
                    self._hand_over(protocol)
                return
            if match is Match.UNDECIDED and len(self._head) <= MAX_HEAD_BYTES:
                return
        self._answer(TOO_LONG)

    def _take_proxy_header(self) -> bool:
        """False if the header is incomplete or invalid."""
        try:
            found = split_proxy_header(self._head)
        except BadRequest:
            self._answer(NO_PROXY_HEADER)
            return False
        if found is None:
            return False
        proxied, self._head = found
        self._peer = Peer(self._peer.address, proxied)
        self._waits_for_proxy_header = False
        return True

    def drop(self) -> None:
        """Close it to make room for another connection. Without a transport it is closed once it has one: uvloop crashes if a
        transport is closed before that."""
        self._dropped = True
        if self._transport is not None:
            self._transport.abort()
        elif self.accepting is not None:
            self.accepting.cancel()

    def finish(self) -> None:
        """The connection was handed over to its protocol, or is lost."""
        if self.entering is not None:
            with suppress(StopIteration):
                self.entering.send(None)
            self.entering = None
        self._shared_port.head_timeouts.end(self)
        self._shared_port.admission.left(self)

    def time_out(self) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._shared_port.admission.count(Refusal.HEAD_TIMEOUT)
        self._transport.abort()

    def _answer(self, response: bytes) -> None:
        assert self._transport is not None
        self._transport.write(response)
        self._transport.close()

    def _wait_for_turn(self, protocol: PortProtocol) -> None:
        """A handshake opens a session, so thousands at once would hold the event loop."""
        assert self._transport is not None
        self._matched = True
        self._shared_port.head_timeouts.end(self)
        self._shared_port.admission.waits(self)
        self._transport.pause_reading()
        self._shared_port.handshakes.put(partial(self._take_turn, protocol))

    def _take_turn(self, protocol: PortProtocol) -> None:
        if self._transport is not None and not self._transport.is_closing():
            transport = self._transport
            transport.resume_reading()
            try:
                self._hand_over(protocol)
            except BaseException:
                transport.abort()
                raise

    def _hand_over(self, protocol: PortProtocol) -> None:
        assert self._transport is not None
        if not protocol.may_enter():
            self._answer(protocol.busy)
            return
        self.finish()
        data, self._head = self._head, b""
        transport, self._transport = self._transport, None
        sock, self.sock = self.sock, None
        protocol.enter(transport, data, self._peer, sock)

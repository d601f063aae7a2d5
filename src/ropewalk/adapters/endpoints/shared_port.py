"""One port for all protocols. Looks at the first bytes of a connection and hands the connection to its protocol.

A WebSocket upgrade may also come later, on a kept-alive HTTP connection behind a proxy; then the HTTP
handler hands the connection over.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from socket import socket
from typing import cast

from ropewalk.adapters.endpoints.admission import ConnectionAdmission, ConnectionLimits
from ropewalk.adapters.endpoints.broky import BrokyEndpoint
from ropewalk.adapters.endpoints.head_timeouts import HeadTimeouts
from ropewalk.adapters.endpoints.http_connection import MAX_HEAD_BYTES, HttpConnection
from ropewalk.adapters.endpoints.http_requests import HttpRequest
from ropewalk.adapters.endpoints.http_responses import HttpResponse, refusal
from ropewalk.adapters.endpoints.port_protocols import (
    AHEAD_LIMIT,
    BrokyOnPort,
    HttpOnPort,
    Match,
    PortProtocol,
    TlsOnPort,
    WebSocketOnPort,
    wants_websocket,
)
from ropewalk.adapters.endpoints.websocket import WebSocketEndpoint
from ropewalk.model.errors import BadRequest
from ropewalk.model.refusals import Refusal
from ropewalk.protocol.proxies import Peer, TrustedProxies
from ropewalk.protocol.proxy_header import split_proxy_header

HEAD_TIMEOUT = 5.0
TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"
TOO_LONG = b"HTTP/1.1 431 HttpRequest Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
NO_PROXY_HEADER = b"HTTP/1.1 400 Bad HttpRequest\r\nContent-Length: 24\r\nConnection: close\r\n\r\na PROXY header is needed"


class SharedPort:
    """Creates the protocol of each accepted connection, within the connection limits.

    `protocols` is the table of what is spoken here: the first one that does not say no decides. `write_timeout`: how long an
    HTTP peer may take nothing of what waits for it. `proxy_header`: connections of trusted proxies begin with a PROXY header.
    """

    def __init__(
        self,
        websocket: WebSocketEndpoint,
        limits: ConnectionLimits,
        refusals: Counter[str],
        write_timeout: float,
        proxies: TrustedProxies,
        proxy_header: bool = False,
        broky: BrokyEndpoint | None = None,
    ) -> None:
        self.admission = ConnectionAdmission(limits, refusals, self._client_connections, lambda: self.http.connections)
        self._endpoint = websocket
        self.head_timeouts = HeadTimeouts(HEAD_TIMEOUT)
        self.http = HttpOnPort(self.admission, self.head_timeouts, write_timeout, proxies)
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
    """A connection whose protocol is not known yet. It exists from the accept on; with TLS, also before the handshake is
    done. It knows nothing any more once it has handed the connection over: uvloop remembers it as long as that lasts."""

    __slots__ = (
        "_dropped",
        "_head",
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
        self._transport: asyncio.Transport | None = None
        self.accepting: asyncio.Task[None] | None = None  # with TLS, until it has come in
        self.entering: Coroutine[object, None, object] | None = None  # without, up to its end
        self.sock: socket | None = None  # without
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
        self.settled()

    def data_received(self, data: bytes) -> None:
        self._head += data
        if self._waits_for_proxy_header and not self._take_proxy_header():
            return
        for protocol in self._shared_port.protocols:
            match = protocol.detect(self._head)
            if match is Match.YES:
                self._hand_over(protocol)
                return
            if match is Match.UNDECIDED and len(self._head) <= MAX_HEAD_BYTES:
                return
        self._answer(TOO_LONG)

    def _take_proxy_header(self) -> bool:
        """False while the header is not all there, or is none."""
        try:
            found = split_proxy_header(self._head)
        except BadRequest:
            self._answer(NO_PROXY_HEADER)
            return False
        if found is None:
            return False
        told, self._head = found
        self._peer = Peer(self._peer.address, told)
        self._waits_for_proxy_header = False
        return True

    def drop(self) -> None:
        """Close it to make room for another: connections without a request yet are dropped first. One whose transport is not
        made yet ends when it is: uvloop crashes where a transport is closed before that."""
        self._dropped = True
        if self._transport is not None:
            self._transport.abort()
        elif self.accepting is not None:
            self.accepting.cancel()

    def settled(self) -> None:
        """The connection was handed over to its protocol, or is gone."""
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

    def _hand_over(self, protocol: PortProtocol) -> None:
        assert self._transport is not None
        if not protocol.may_enter():
            self._answer(protocol.busy)
            return
        self.settled()
        data, self._head = self._head, b""
        transport, self._transport = self._transport, None
        sock, self.sock = self.sock, None
        protocol.enter(transport, data, self._peer, sock)

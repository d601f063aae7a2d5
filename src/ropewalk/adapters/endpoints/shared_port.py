"""One port for all protocols. Looks at the first request of a connection and hands the connection to its protocol.

WebSocket goes to picows, everything else to aiohttp. An upgrade may also come later, on a kept-alive HTTP connection behind
a proxy; then aiohttp's handler hands the connection over.
"""

import asyncio
import logging
import socket
from collections import Counter
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.log import server_logger
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # missing in picows' stubs only

from ropewalk.adapters.endpoints.admission import ConnectionAdmission, ConnectionLimits
from ropewalk.adapters.endpoints.http_connection import HttpConnection
from ropewalk.adapters.endpoints.proxied_connection import ProxiedConnection
from ropewalk.adapters.endpoints.turns import Turns
from ropewalk.adapters.endpoints.unix import UnixTransport
from ropewalk.adapters.endpoints.websocket import WebSocketEndpoint
from ropewalk.model.errors import BadRequest
from ropewalk.model.refusals import Refusal
from ropewalk.protocol.proxies import Peer, TrustedProxies
from ropewalk.protocol.proxy_header import split_proxy_header

HEAD_LIMIT = 16 * 1024
HEAD_TIMEOUT = 5.0
AHEAD_LIMIT = 4 * 1024
"""Of what a WebSocket client sends before it has our answer, for which it has to wait: it is all handled at once."""

BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 20\r\nRetry-After: 5\r\nConnection: close\r\n\r\ntoo many connections"
)
AHEAD = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 32\r\nConnection: close\r\n\r\nframes came before the handshake"
TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
NO_PROXY_HEADER = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 24\r\nConnection: close\r\n\r\na PROXY header is needed"


class _OurErrors(logging.Filter):
    """Bad HTTP is answered with a 400. A traceback for it would not help, and would let strangers fill the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


OUR_ERRORS = _OurErrors()


class SharedPort:
    """Creates the protocol of each accepted connection, within the connection limits.

    `http`, aiohttp's factory of protocols, is set before the first connection. `write_timeout`: how long an HTTP peer may take
    nothing of what waits for it. `proxy_header`: connections of trusted proxies begin with a PROXY header.
    """

    http: web.Server

    def __init__(
        self,
        websocket: WebSocketEndpoint,
        limits: ConnectionLimits,
        refusals: Counter[str],
        write_timeout: float,
        proxies: TrustedProxies,
        proxy_header: bool = False,
    ) -> None:
        self.websocket = websocket
        self.admission = ConnectionAdmission(
            limits, refusals, lambda: websocket.connections, lambda: len(self.http.connections)
        )
        self.parsing = Turns()
        self.write_timeout = write_timeout
        self.proxies = proxies
        self.proxy_header = proxy_header
        server_logger.addFilter(OUR_ERRORS)

    def detector(self) -> "ProtocolDetector":
        return ProtocolDetector(self)

    async def upgrade(self, request: web.Request) -> web.Response:
        """The aiohttp handler of the WebSocket paths: what comes here did not begin as an upgrade."""
        head = b"\r\n".join(b"%b: %b" % header for header in request.raw_headers)
        if not wants_websocket(b"\r\n" + head) or request.transport is None:
            return web.Response(status=400, text="this is a WebSocket endpoint; connect with a WebSocket client")
        if not self.admission.client_may_enter():
            return web.Response(status=503, text="too many connections", headers={"Retry-After": "5"})
        connection = request.protocol
        peer = connection.peer if isinstance(connection, ProxiedConnection) else Peer(request.remote or "")
        line = f"{request.method} {request.raw_path} HTTP/1.1\r\n".encode("latin-1")
        with self.admission.upgraded():
            protocol = enter_websocket(self, request.transport, line + head + b"\r\n\r\n", peer)
            await protocol.transport.wait_disconnected()
        request.protocol.force_close()
        request.protocol.connection_lost(None)  # the transport has told picows; aiohttp's book-keeping hears it here
        return web.Response()


class ProtocolDetector(asyncio.Protocol):
    """A connection whose protocol is not known yet. It exists from the accept on; with TLS, also before the handshake is
    done."""

    def __init__(self, shared_port: SharedPort) -> None:
        self._shared_port = shared_port
        self._head = b""
        self._peer = Peer("")
        self._waits_for_proxy_header = False
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.accepting: asyncio.Task[None] | None = None
        shared_port.admission.arrived(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._peer = Peer(peer[0] if peer else "")
        self._waits_for_proxy_header = self._shared_port.proxy_header and self._shared_port.proxies.trusts(self._peer.address)
        self._timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT, self._too_late)

    def connection_lost(self, error: Exception | None) -> None:
        self.settled()

    def data_received(self, data: bytes) -> None:
        self._head += data
        if self._waits_for_proxy_header and not self._take_proxy_header():
            return
        end = self._head.find(b"\r\n\r\n")
        if end < 0 and len(self._head) <= HEAD_LIMIT:
            return
        if end < 0 or end > HEAD_LIMIT:
            self._answer(TOO_LONG)
            return
        websocket = wants_websocket(self._head[:end])
        admission = self._shared_port.admission
        if admission.client_may_enter() if websocket else admission.http_may_enter():
            self.settled()
            self._hand_over(websocket, end + len(b"\r\n\r\n"))
        else:
            self._answer(BUSY)

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
        """Close it to make room for another: connections without a request yet are dropped first."""
        self._shared_port.admission.count(Refusal.HEAD_TIMEOUT)
        if self._transport is not None:
            self._transport.abort()
        elif self.accepting is not None:
            self.accepting.cancel()

    def settled(self) -> None:
        """The connection was handed over to its protocol, or is gone."""
        if self._timer is not None:
            self._timer.cancel()
        self._shared_port.admission.left(self)

    def _too_late(self) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._shared_port.admission.count(Refusal.HEAD_TIMEOUT)
        self._transport.abort()

    def _answer(self, response: bytes) -> None:
        assert self._transport is not None
        self._transport.write(response)
        self._transport.close()

    def _hand_over(self, websocket: bool, head_size: int) -> None:
        assert self._transport is not None
        data, self._head = self._head, b""
        shared_port = self._shared_port
        if websocket and len(data) > head_size + AHEAD_LIMIT:
            self._answer(AHEAD)
            return
        if websocket:
            enter_websocket(shared_port, self._transport, data, self._peer)
            return
        admission = shared_port.admission
        protocol = HttpConnection(
            shared_port.http,
            admission.refusals,
            shared_port.parsing,
            admission.idle_timeout(),
            shared_port.write_timeout,
            self._peer,
            shared_port.proxies,
        )
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(data)


def enter_websocket(shared_port: SharedPort, transport: asyncio.Transport, data: bytes, peer: Peer) -> WSProtocol:
    protocol = shared_port.websocket.protocol(peer)
    transport.set_protocol(protocol)
    over_unix = transport.get_extra_info("socket").family == socket.AF_UNIX
    protocol.connection_made(UnixTransport(transport) if over_unix else transport)
    rest = memoryview(data)
    while rest:
        buffer = protocol.get_buffer(-1)
        taken = min(len(buffer), len(rest))
        buffer[:taken] = rest[:taken]
        rest = rest[taken:]
        protocol.buffer_updated(taken)
    return protocol


def wants_websocket(head: bytes) -> bool:
    """Whether the request asks for an upgrade. picows checks the handshake itself."""
    for line in head.lower().split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name == b"upgrade" and b"websocket" in value:
            return True
    return False

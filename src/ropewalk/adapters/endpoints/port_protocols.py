"""The protocols of the shared port. Each one tells by the first bytes of a connection whether it is its own, and takes it over.

`SharedPort` asks them in the order of its table. A further protocol is one more row there.
"""

import asyncio
import re
from collections.abc import Iterable
from enum import Enum
from socket import socket
from typing import Protocol

from ropewalk.adapters.endpoints.admission import ConnectionAdmission
from ropewalk.adapters.endpoints.broky import BrokyEndpoint
from ropewalk.adapters.endpoints.head_timeouts import HeadTimeouts
from ropewalk.adapters.endpoints.http_connection import MAX_HEAD_BYTES, HttpConnection, HttpContext
from ropewalk.adapters.endpoints.routes import HttpRoute, HttpRouter
from ropewalk.adapters.endpoints.turns import LoopTurns
from ropewalk.adapters.endpoints.websocket import WebSocketEndpoint
from ropewalk.protocol.broky.codec import error
from ropewalk.protocol.broky.frames import Reason
from ropewalk.protocol.broky.tables import IDENTIFIER, SMALLEST
from ropewalk.protocol.handshake import HEAD_END
from ropewalk.protocol.proxies import Peer, TrustedProxies

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
    """The result of matching the first bytes of a connection with a protocol."""

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
        """Take the connection over, with what was read of it; or answer and close it. `sock`: the transport's own, if there is
        nothing in between."""


class BrokyOnPort:
    """Its frames begin with a size whose fourth byte is zero, which is in no text, and have an identifier in a fixed place."""

    busy = error(Reason.OVERFLOW, "too many connections", reconnect=True)

    def __init__(self, endpoint: BrokyEndpoint, admission: ConnectionAdmission) -> None:
        self._endpoint = endpoint
        self._admission = admission
        endpoint.may_stay = admission.client_may_enter

    def detect(self, data: bytes) -> Match:
        if data[3:4].strip(b"\0"):
            return Match.NO
        if len(data) < SMALLEST:
            return Match.UNDECIDED
        return Match.YES if data.startswith(IDENTIFIER, SMALLEST - len(IDENTIFIER)) else Match.NO

    def may_enter(self) -> bool:
        """Among nodes of a ring that is known when its Hello has come."""
        return self._endpoint.in_a_ring or self._admission.client_may_enter()

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
    """Every other request, and what is not HTTP, which gets a refusal. So this is the last row of the table."""

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

"""The door: one port for everything. Looks at a connection's first request and hands the connection to its protocol.

WebSocket goes to picows, the rest to aiohttp. An upgrade may also come later, on a kept-alive HTTP connection
behind a proxy: then aiohttp's handler hands the connection over.
"""

import asyncio
import logging
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.log import server_logger
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # missing in picows' stubs only

from ropewalk.adapters.transports.websocket import WebSocketDoor

HEAD_LIMIT = 16 * 1024
HEAD_PATIENCE = 5.0
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 20\r\nRetry-After: 5\r\nConnection: close\r\n\r\ntoo many connections"
)
AHEAD = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 32\r\nConnection: close\r\n\r\nframes came before the handshake"
TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class _OurErrors(logging.Filter):
    """Whoever sends bad HTTP gets a 400 for it; a traceback of it would say nothing of us and let strangers fill the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


OUR_ERRORS = _OurErrors()


class Door:
    """Makes the protocol of each accepted connection. `max_connections` bounds all of them together; 0 means no bound.

    `http`, aiohttp's factory of protocols, is set before the first knock.
    """

    http: web.Server

    def __init__(self, websocket: WebSocketDoor, max_connections: int) -> None:
        self.websocket = websocket
        self.knocking = 0
        self._most = max_connections
        server_logger.addFilter(OUR_ERRORS)

    def knock(self) -> "Knock":
        return Knock(self)

    def connections(self) -> int:
        return self.knocking + self.websocket.connections + len(self.http.connections)

    def full(self) -> bool:
        return bool(self._most) and self.connections() > self._most

    async def upgrade(self, request: web.Request) -> web.Response:
        """The aiohttp handler of the WebSocket paths: what comes here did not begin as an upgrade."""
        head = b"\r\n".join(b"%b: %b" % header for header in request.raw_headers)
        if not wants_websocket(b"\r\n" + head) or request.transport is None:
            return web.Response(status=400, text="this is a WebSocket endpoint; connect with a WebSocket client")
        line = f"{request.method} {request.raw_path} HTTP/1.1\r\n".encode("latin-1")
        protocol = enter_websocket(self, request.transport, line + head + b"\r\n\r\n")
        await protocol.transport.wait_disconnected()
        request.protocol.force_close()
        request.protocol.connection_lost(None)  # the transport has told picows; aiohttp's book-keeping hears it here
        return web.Response()


class Knock(asyncio.Protocol):
    """A connection of which nothing is known yet."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._patience = asyncio.get_running_loop().call_later(HEAD_PATIENCE, self._transport.abort)
        self._door.knocking += 1

    def connection_lost(self, error: Exception | None) -> None:
        self._known()

    def data_received(self, data: bytes) -> None:
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0 and len(self._head) <= HEAD_LIMIT:
            return
        if self._door.full():
            self._answer(BUSY)
        elif end < 0 or end > HEAD_LIMIT:
            self._answer(TOO_LONG)
        else:
            self._known()
            self._hand_over(wants_websocket(self._head[:end]))

    def _known(self) -> None:
        if not self._patience.cancelled():
            self._patience.cancel()
            self._door.knocking -= 1

    def _answer(self, response: bytes) -> None:
        self._transport.write(response)
        self._transport.close()

    def _hand_over(self, websocket: bool) -> None:
        data, self._head = self._head, b""
        if websocket and len(data) > 2 * HEAD_LIMIT:
            # A client has to wait for our answer; what it sent ahead would all be handled at once, before anybody else's turn.
            self._answer(AHEAD)
            return
        if websocket:
            enter_websocket(self._door, self._transport, data)
            return
        protocol = self._door.http()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(data)


def enter_websocket(door: Door, transport: asyncio.Transport, data: bytes) -> WSProtocol:
    peer = transport.get_extra_info("peername")
    protocol = door.websocket.protocol(peer[0] if peer else "")
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    rest = memoryview(data)
    while rest:
        buffer = protocol.get_buffer(-1)
        taken = min(len(buffer), len(rest))
        buffer[:taken] = rest[:taken]
        rest = rest[taken:]
        protocol.buffer_updated(taken)
    return protocol


def wants_websocket(head: bytes) -> bool:
    """The request's own words for it; whether the handshake is right is picows' to judge."""
    for line in head.lower().split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name == b"upgrade" and b"websocket" in value:
            return True
    return False

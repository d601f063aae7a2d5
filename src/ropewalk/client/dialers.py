"""Connections to the server: a WebSocket, or TCP with or without TLS."""

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Literal, cast

from aiohttp import (
    ClientError,
    ClientSession,
    ClientWebSocketResponse,
    ClientWSTimeout,
    WSMsgType,
    WSServerHandshakeError,
)
from msgspec import Struct

from ropewalk.client.addresses import TcpAddress
from ropewalk.client.errors import Unreachable
from ropewalk.client.tls import connection_error
from ropewalk.model.errors import UserMistake
from ropewalk.protocol.client_commands import SUBPROTOCOL
from ropewalk.protocol.handshake import POSITIONS_PARAM

CLOSE_SECONDS = 1.0
"""Time for the last writes, and for the server's half of the closing handshake."""

_REFUSALS = {
    403: "refuses the origin of this connection; see --allowed_origins and --require_origin of the server",
    503: "accepts no more connections now",
}
_NO_CABLE = "is not the WebSocket of a cable server"


class WebSocketLink:
    """Reads only while `reading`: otherwise the socket fills up."""

    def __init__(self, websocket: "ClientWebSocketResponse[Literal[False]]", receive: Callable[[bytes], None]) -> None:
        self.received = False
        self._websocket = websocket
        self._receive = receive
        self._left = False
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._unsent: deque[bytes] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._write_error: Exception | None = None

    @property
    def reading(self) -> bool:
        return self._may_read.is_set()

    def read(self, reading: bool) -> None:
        if reading:
            self._may_read.set()
        else:
            self._may_read.clear()

    @property
    def writable(self) -> bool:
        return self._sender is None or self._sender.done()

    async def drain(self) -> None:
        if self._sender is not None:
            await asyncio.wait([self._sender])
        if self._write_error is not None:
            raise Unreachable(f"the connection is lost: {self._write_error}")

    def write(self, data: bytes) -> None:
        self._unsent.append(data)
        if self.writable:
            self._sender = asyncio.get_running_loop().create_task(self._send_all())

    async def _send_all(self) -> None:
        """If a write fails, the connection is lost, which the reader reports."""
        try:
            while self._unsent:
                await self._websocket.send_frame(self._unsent.popleft(), WSMsgType.TEXT)
        except (ClientError, OSError) as error:
            self._unsent.clear()
            self._write_error = error

    async def run(self) -> None:
        """Until the connection is lost or left. Raises Unreachable."""
        while True:
            await self._may_read.wait()
            frame = await self._websocket.receive()
            if frame.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                raise Unreachable(f"the server closed the connection (code {self._websocket.close_code})")
            self.received = True
            self._receive(frame.data)
            if self._left:
                return

    def leave(self) -> None:
        """Receive nothing more."""
        self._left = True

    async def close(self) -> None:
        """Also closes the connection if it is cancelled."""
        try:
            if self._sender is not None:
                await asyncio.wait([self._sender], timeout=CLOSE_SECONDS)
        finally:
            if self._sender is not None:
                self._sender.cancel()
            await self._websocket.close()

    def cut(self) -> None:
        """Shut the connection down, like a network failure."""
        connected: socket.socket | None = self._websocket.get_extra_info("socket")
        if connected is None or connected.fileno() < 0:
            return
        # A duplicate, because event loops only lend the socket.
        with socket.socket(fileno=os.dup(connected.fileno())) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)


class WebSocketDialer(Struct, frozen=True):
    http: ClientSession
    url: str
    token_param: str
    ping_interval: int | None
    timeout: float
    hint = "is it the address of a cable server?"

    async def dial(self, receive: Callable[[bytes], None], sid: str, token: str) -> WebSocketLink:
        """Raises Unreachable."""
        try:
            async with asyncio.timeout(self.timeout):
                connected = await self._upgrade(sid, token)
        except WSServerHandshakeError as error:
            raise Unreachable(f"{self.url} {_REFUSALS.get(error.status, _NO_CABLE)} (HTTP {error.status})") from error
        except TimeoutError:
            raise Unreachable(f"{self.url} did not answer within {self.timeout:g} seconds") from None
        except (ClientError, OSError) as error:
            raise connection_error(self.url, error) from error
        if connected.protocol != SUBPROTOCOL:
            await connected.close()
            raise Unreachable(f"{self.url} does not speak {SUBPROTOCOL}")
        return WebSocketLink(connected, receive)

    async def _upgrade(self, sid: str, token: str) -> "ClientWebSocketResponse[Literal[False]]":
        if not token.isprintable():
            raise UserMistake("the token has control characters; a JWT has none")
        # In headers, not in the URL: proxies log URLs.
        headers = {"x-anycable-restore-sid": sid, f"x-{self.token_param}": token}
        # Millisecond pings carry the server's clock, for requests by time. With `reconnect_in` a server that
        # restarts spreads the reconnects of its clients.
        params = {POSITIONS_PARAM: "1", "ptp": "ms", "reconnect_in": "1"}
        if self.ping_interval:
            params["pi"] = str(self.ping_interval)
        return await self.http.ws_connect(
            self.url,
            params=params,
            headers={name: value for name, value in headers.items() if value},
            protocols=(SUBPROTOCOL,),
            max_msg_size=0,  # the server limits its messages
            timeout=ClientWSTimeout(ws_close=CLOSE_SECONDS),
            decode_text=False,
        )


WRITE_BUFFER_BYTES = 256 * 1024
"""Time to send what was written, and over TLS to wait for the server's end, before a closed connection is aborted."""


class TcpLink(asyncio.Protocol):
    """Received data is passed on at once, without a task in between: a burst wakes its readers once."""

    def __init__(self, url: str, receive: Callable[[bytes], None]) -> None:
        self.received = False
        self.reading = True
        self._url = url
        self._receive = receive
        self._left = False
        self._transport: asyncio.Transport | None = None
        self._done = asyncio.Event()
        self._disconnected = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        self.received = True
        if not self._left:
            self._receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._may_write.set()
        self._done.set()
        self._disconnected.set()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    @property
    def writable(self) -> bool:
        return self._may_write.is_set()

    async def drain(self) -> None:
        await self._may_write.wait()

    def write(self, data: bytes) -> None:
        """Ignored if the connection is closing: uvloop raises then, and asyncio logs."""
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(data)

    def read(self, reading: bool) -> None:
        assert self._transport is not None
        if reading is not self.reading and not self._transport.is_closing():
            self.reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    async def run(self) -> None:
        """Until the connection is lost or left. Raises Unreachable."""
        await self._done.wait()
        if not self._left:
            raise Unreachable(f"{self._url} closed the connection")

    def leave(self) -> None:
        """Receive nothing more. What was written is still sent."""
        self._left = True
        self._done.set()
        if self._transport is not None:
            self._transport.close()

    async def close(self) -> None:
        """Also closes the connection if it is cancelled."""
        self.leave()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._disconnected.wait()
        except TimeoutError:
            pass
        finally:
            self.cut()
            await self._disconnected.wait()

    def cut(self) -> None:
        """Abort the connection, like a network failure."""
        if self._transport is not None:
            self._transport.abort()


class TcpDialer(Struct, frozen=True):
    address: TcpAddress
    tls: ssl.SSLContext | None
    timeout: float

    @property
    def url(self) -> str:
        return self.address.url

    @property
    def hint(self) -> str:
        return self.address.hint

    async def dial(self, receive: Callable[[bytes], None], sid: str, token: str) -> TcpLink:
        """The token is in the first frame. Raises Unreachable."""
        address = self.address
        try:
            async with asyncio.timeout(self.timeout):
                loop = asyncio.get_running_loop()
                _, link = await loop.create_connection(
                    lambda: TcpLink(self.url, receive), address.host, address.port, ssl=self.tls
                )
                return link
        except TimeoutError:
            raise Unreachable(f"{self.url} did not answer within {self.timeout:g} seconds") from None
        except ConnectionResetError as error:
            cause = error if self.tls is None else ssl.SSLEOFError()
            raise connection_error(self.url, cause, hint=address.hint) from error
        except OSError as error:
            raise connection_error(self.url, error, hint=address.hint) from error

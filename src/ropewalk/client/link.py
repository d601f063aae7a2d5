"""One WebSocket to the server. Typed messages in, commands out; whatever the library raises becomes `Unreachable`."""

import asyncio
import os
import socket

from aiohttp import (
    ClientError,
    ClientSession,
    ClientWebSocketResponse,
    ClientWSTimeout,
    WSMsgType,
    WSServerHandshakeError,
)
from msgspec import Struct

from ropewalk.client.errors import Unreachable
from ropewalk.client.keepalive import Keepalive
from ropewalk.client.unreached import unreached
from ropewalk.protocol.client_commands import SUBPROTOCOL, ClientCommand, encode
from ropewalk.protocol.handshake import POSITIONS_PARAM
from ropewalk.protocol.server_messages import ServerMessage, decode

CLOSE_TIMEOUT = 1.0
"""Seconds to wait for the server's half of the closing handshake; nothing depends on it."""


_REFUSALS = {
    403: "refuses the origin of this connection; see --allowed_origins and --require_origin of the server",
    503: "takes no more connections now",
}
_NO_CABLE = "is no WebSocket of a cable server"


class DialOptions(Struct, frozen=True):
    """Everything a new connection is made with."""

    url: str
    sid: str = ""
    token: str = ""
    token_param: str = "jid"
    ping_interval: int | None = None
    timeout: float = 10.0

    def params(self) -> dict[str, str]:
        # Milliseconds, because the server's clock tells from when on a silent stream was followed.
        # A server that ends spreads the return of its clients, if they take its word for when to come back.
        wishes = {POSITIONS_PARAM: "1", "ptp": "ms", "reconnect_in": "1"}
        return wishes | ({"pi": str(self.ping_interval)} if self.ping_interval else {})

    def headers(self) -> dict[str, str]:
        """In headers, not in the URL: proxies write URLs into their logs."""
        headers = {"x-anycable-restore-sid": self.sid, f"x-{self.token_param}": self.token}
        return {name: value for name, value in headers.items() if value}


class CableLink:
    """After `lost` or an Unreachable there is nothing more to do with it but `close`."""

    def __init__(self, socket: ClientWebSocketResponse, keepalive: Keepalive) -> None:
        self._socket = socket
        self._keepalive = keepalive

    async def send(self, command: ClientCommand) -> None:
        try:
            await self._socket.send_frame(encode(command), WSMsgType.TEXT)
        except (ClientError, OSError) as error:
            raise Unreachable(f"the connection is gone: {error}") from error

    async def receive(self) -> ServerMessage:
        """The next message. Raises Unreachable when the link is gone or silent for too long."""
        try:
            frame = await self._socket.receive(self._keepalive.timeout)
        except TimeoutError:
            raise Unreachable(f"the server was silent for {self._keepalive.timeout:g} seconds") from None
        if frame.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
            raise Unreachable(f"the server closed the connection (code {self._socket.close_code})")
        message = decode(frame.data)
        self._keepalive.heard(message)
        return message

    async def close(self) -> None:
        await self._socket.close()

    def cut(self) -> None:
        """Break the connection without a word, as a failing network would."""
        connected: socket.socket = self._socket.get_extra_info("socket")
        # A duplicate, because event loops only lend the socket out.
        with socket.socket(fileno=os.dup(connected.fileno())) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)


async def dial(http: ClientSession, call: DialOptions) -> CableLink:
    """Raises Unreachable."""
    try:
        async with asyncio.timeout(call.timeout):
            connected = await _upgrade(http, call)
    except WSServerHandshakeError as error:
        raise Unreachable(f"{call.url} {_REFUSALS.get(error.status, _NO_CABLE)} (HTTP {error.status})") from error
    except TimeoutError:
        raise Unreachable(f"{call.url} did not answer within {call.timeout:g} seconds") from None
    except (ClientError, OSError) as error:
        raise unreached(call.url, error) from error
    if connected.protocol != SUBPROTOCOL:
        await connected.close()
        raise Unreachable(f"{call.url} does not speak {SUBPROTOCOL}")
    return CableLink(connected, Keepalive(call.ping_interval))


async def _upgrade(http: ClientSession, call: DialOptions) -> ClientWebSocketResponse:
    return await http.ws_connect(
        call.url,
        params=call.params(),
        headers=call.headers(),
        protocols=(SUBPROTOCOL,),
        # The server bounds what it sends.
        max_msg_size=0,
        timeout=ClientWSTimeout(ws_close=CLOSE_TIMEOUT),
    )

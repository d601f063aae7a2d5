"""A link whose close is cancelled leaves no open connection."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ropewalk.client.addresses import tcp_address
from ropewalk.client.dialers import TcpDialer, TcpLink, WebSocketDialer, WebSocketLink
from ropewalk.client.tls import http_session
from ropewalk.protocol.client_commands import SUBPROTOCOL

WEBSOCKET_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
MORE_THAN_SOCKETS_HOLD = bytes(32 * 1024 * 1024)


def ignore(data: bytes) -> None: ...


class Peer:
    """Accepts one connection, as a WebSocket if asked for, and then reads nothing until it is told to."""

    def __init__(self, websocket: bool) -> None:
        self.ended = asyncio.Event()
        self._websocket = websocket
        self._may_read = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._websocket:
            head = await reader.readuntil(b"\r\n\r\n")
            [key] = [line[18:].strip() for line in head.splitlines() if line.lower().startswith(b"sec-websocket-key:")]
            accept = base64.b64encode(hashlib.sha1(key + WEBSOCKET_GUID).digest()).decode()
            writer.write(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n".encode()
            )
        await self._may_read.wait()
        try:
            while await reader.read(1 << 20):
                pass
        except ConnectionResetError:
            pass
        self.ended.set()
        writer.close()

    def read(self) -> None:
        self._may_read.set()


@asynccontextmanager
async def dialed(websocket: bool) -> AsyncIterator[tuple[Peer, WebSocketLink | TcpLink]]:
    peer = Peer(websocket)
    async with await asyncio.start_server(peer, "127.0.0.1", 0) as server, http_session(None) as http:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        if websocket:
            yield peer, await WebSocketDialer(http, f"ws://{address}/cable", "token", None, 5.0).dial(ignore, "", "")
        else:
            yield peer, await TcpDialer(tcp_address(f"tcp://{address}"), None, 5.0).dial(ignore, "", "")


@pytest.mark.parametrize("websocket", [True, False])
async def test_cancelled_close_ends_the_connection(websocket: bool) -> None:
    async with dialed(websocket) as (peer, link):
        link.write(MORE_THAN_SOCKETS_HOLD)
        closing = asyncio.create_task(link.close())
        await asyncio.sleep(0)
        closing.cancel()
        peer.read()
        await asyncio.wait([closing])
        await peer.ended.wait()
        assert closing.cancelled()

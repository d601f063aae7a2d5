"""How many writes a WebSocket connection makes."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from ropewalk.adapters.endpoints.websocket import WebSocketEndpoint
from ropewalk.model.sessions import ConnectRequest
from ropewalk.ports import Connection
from ropewalk.protocol.codec import SessionCodec
from ropewalk.protocol.proxies import Peer, TrustedProxies
from tests.unit.adapters.endpoints.wire import Wire

REQUEST = (
    b"GET /cable?pi=0 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: actioncable-v1-ext-json\r\n\r\n"
)
ANSWER = (
    b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Protocol: actioncable-v1-ext-json\r\nConnection: upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)


class Socket:
    """picows and the endpoint set and get options of this file descriptor."""

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number


class Session:
    """A session that may write at once."""

    def __init__(self, connection: Connection, first: bytes) -> None:
        self.connection = connection
        if first:
            connection.write(first)


@pytest.fixture
def wire() -> Iterator[Wire]:
    with socket.socket() as sock:
        yield Wire(Socket(sock.fileno()))


def endpoint(first: bytes, sessions: list[Session]) -> WebSocketEndpoint:
    def open_session(request: ConnectRequest, connection: Connection, codec: SessionCodec) -> Any:
        sessions.append(Session(connection, first))
        return sessions[-1]

    return WebSocketEndpoint(open_session, ["/cable"], lambda _: True, "jid", 1024, False, False, TrustedProxies())


async def test_upgrade_response_and_first_frames_are_one_write(wire: Wire) -> None:
    endpoint(b"welcome", []).take_over(wire, REQUEST, Peer("127.0.0.1"))
    assert wire.writes == [ANSWER + b"welcome"]


async def test_upgrade_response_does_not_wait_for_the_session(wire: Wire) -> None:
    sessions: list[Session] = []
    endpoint(b"", sessions).take_over(wire, REQUEST, Peer("127.0.0.1"))
    assert wire.writes == [ANSWER]
    sessions[0].connection.write(b"welcome")
    assert wire.writes == [ANSWER, b"welcome"]


async def test_refusal_of_a_session_follows_the_upgrade_response(wire: Wire) -> None:
    class Refusing(Session):
        def __init__(self, connection: Connection, first: bytes) -> None:
            super().__init__(connection, b"no")
            connection.close(1000, "")

    def open_session(request: ConnectRequest, connection: Connection, codec: SessionCodec) -> Any:
        return Refusing(connection, b"")

    refusing = WebSocketEndpoint(open_session, ["/cable"], lambda _: True, "jid", 1024, False, False, TrustedProxies())
    refusing.take_over(wire, REQUEST, Peer("127.0.0.1"))
    assert wire.writes == [ANSWER + b"no" + b"\x88\x02\x03\xe8"]


async def test_invalid_upgrade_request_opens_no_session(wire: Wire) -> None:
    sessions: list[Session] = []
    bad = REQUEST.replace(b"Sec-WebSocket-Version: 13\r\n", b"")
    endpoint(b"welcome", sessions).take_over(wire, bad, Peer("127.0.0.1"))
    assert sessions == []
    assert b"".join(wire.writes).startswith(b"HTTP/1.1 400 ")
    assert b"welcome" not in b"".join(wire.writes)

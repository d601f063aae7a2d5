"""How many writes a WebSocket connection makes."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from ropewalk.adapters.endpoints.head_timeouts import MESSAGE_SECONDS
from ropewalk.adapters.endpoints.websocket import READ_CHUNK, WebSocketEndpoint, WebSocketOptions
from ropewalk.model.sessions import ConnectRequest
from ropewalk.ports import Connection
from ropewalk.protocol.codec import SessionCodec
from ropewalk.protocol.proxies import Peer, TrustedProxies
from ropewalk.testing.clock import ManualClock
from tests.tcp import CONTINUATION, PING, TEXT, client_frame
from tests.unit.adapters.endpoints.wire import Wire
from tests.unit.adapters.loop_time import pass_time

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

    def setsockopt(self, *option: int) -> None:
        """Options are ignored."""


class Session:
    """A session that may write at once."""

    def __init__(self, connection: Connection, first: bytes) -> None:
        self.connection = connection
        self.received: list[bytes] = []
        self.timed_out = 0
        if first:
            connection.write(first)

    def receive(self, frame: bytes) -> None:
        self.received.append(frame)

    def note_activity(self) -> None:
        pass

    def message_overdue(self) -> None:
        self.timed_out += 1


@pytest.fixture
def wire() -> Iterator[Wire]:
    with socket.socket() as sock:
        yield Wire(Socket(sock.fileno()))


def endpoint(first: bytes, sessions: list[Session]) -> WebSocketEndpoint:
    def open_session(request: ConnectRequest, connection: Connection, codec: SessionCodec) -> Any:
        sessions.append(Session(connection, first))
        return sessions[-1]

    return WebSocketEndpoint(
        open_session, lambda _: True, TrustedProxies(), WebSocketOptions(["/cable"], max_message_size=1024)
    )


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

    refusing = WebSocketEndpoint(
        open_session, lambda _: True, TrustedProxies(), WebSocketOptions(["/cable"], max_message_size=1024)
    )
    refusing.take_over(wire, REQUEST, Peer("127.0.0.1"))
    assert wire.writes == [ANSWER + b"no" + b"\x88\x02\x03\xe8"]


async def test_invalid_upgrade_request_opens_no_session(wire: Wire) -> None:
    sessions: list[Session] = []
    bad = REQUEST.replace(b"Sec-WebSocket-Version: 13\r\n", b"")
    endpoint(b"welcome", sessions).take_over(wire, bad, Peer("127.0.0.1"))
    assert sessions == []
    assert b"".join(wire.writes).startswith(b"HTTP/1.1 400 ")
    assert b"welcome" not in b"".join(wire.writes)


# --- messages that are begun ------------------------------------------------------------------------------------------

MESSAGE = client_frame(b'{"command":"ping"}')
FRAGMENT = client_frame(b"{", TEXT, fin=False)


class Client:
    """A connection with a session, and what its client sends."""

    def __init__(self, wire: Wire, ahead: bytes = b"") -> None:
        sessions: list[Session] = []
        self._protocol = endpoint(b"", sessions).take_over(wire, REQUEST + ahead, Peer("127.0.0.1"))
        (self.session,) = sessions

    def send(self, data: bytes) -> None:
        while data:
            buffer = self._protocol.get_buffer(-1)
            taken = min(len(buffer), len(data))
            buffer[:taken] = data[:taken]
            data = data[taken:]
            self._protocol.buffer_updated(taken)


@pytest.mark.parametrize(
    "begun",
    [MESSAGE[:-1], MESSAGE + MESSAGE[:1], FRAGMENT, FRAGMENT + client_frame(b"", PING), MESSAGE + FRAGMENT + FRAGMENT[:-1]],
    ids=["frame", "header", "fragment", "fragment and ping", "fragments"],
)
async def test_message_that_is_not_finished_in_time_ends_the_session(wire: Wire, loop_clock: ManualClock, begun: bytes) -> None:
    clients = [Client(wire), Client(wire, ahead=begun)]
    clients[0].send(begun)
    await pass_time(loop_clock, MESSAGE_SECONDS - 0.1)
    assert [client.session.timed_out for client in clients] == [0, 0]
    for client in clients:
        client.send(client_frame(b"", PING) if begun == FRAGMENT else b"")
    await pass_time(loop_clock, 0.2)
    assert [client.session.timed_out for client in clients] == [1, 1]


@pytest.mark.parametrize(
    "whole",
    [
        MESSAGE,
        MESSAGE * 3,
        FRAGMENT + client_frame(b"}", CONTINUATION),
        client_frame(b"x" * (READ_CHUNK - 8)),  # fills the buffer of one read
        client_frame(b"", PING),
    ],
    ids=["message", "messages", "fragments", "large", "ping"],
)
async def test_idle_client_after_whole_messages_is_not_timed_out(wire: Wire, loop_clock: ManualClock, whole: bytes) -> None:
    client = Client(wire)
    for byte in whole:
        client.send(bytes([byte]))
    client.send(whole)
    await pass_time(loop_clock, 10 * MESSAGE_SECONDS)
    assert client.session.timed_out == 0


async def test_each_message_has_its_own_time(wire: Wire, loop_clock: ManualClock) -> None:
    client = Client(wire)
    client.send(MESSAGE[:5])
    for _ in range(5):
        await pass_time(loop_clock, 0.9 * MESSAGE_SECONDS)
        client.send(MESSAGE[5:] + MESSAGE[:5])
    assert (client.session.timed_out, len(client.session.received)) == (0, 5)


async def test_message_of_a_client_that_is_not_read_is_not_timed_out(wire: Wire, loop_clock: ManualClock) -> None:
    client = Client(wire)
    client.send(MESSAGE + MESSAGE[:5])
    client.session.connection.hold_reading(True)
    await pass_time(loop_clock, 1.5 * MESSAGE_SECONDS)
    assert client.session.timed_out == 0
    client.session.connection.hold_reading(False)
    await pass_time(loop_clock, MESSAGE_SECONDS)
    assert client.session.timed_out == 1

"""The shared port gives a connection to the protocol of its first bytes."""

import asyncio
from socket import socket

import pytest

from ropewalk.adapters.endpoints.http_connection import MAX_HEAD_BYTES, HttpConnection
from ropewalk.adapters.endpoints.shared_port import TOO_LONG, Match, SharedPort
from ropewalk.protocol.proxies import Peer
from tests.unit.adapters.endpoints.wire import Wire
from tests.unit.adapters.http_server import shared_port

MAGIC = b"OTHER"


class Other:
    """A protocol whose connections begin with MAGIC."""

    busy = b"no room"

    def __init__(self) -> None:
        self.room = True
        self.entered: list[tuple[asyncio.Transport, bytes]] = []

    def detect(self, data: bytes) -> Match:
        if data.startswith(MAGIC):
            return Match.YES
        return Match.UNDECIDED if MAGIC.startswith(data) else Match.NO

    def may_enter(self) -> bool:
        return self.room

    def enter(self, transport: asyncio.Transport, data: bytes, peer: Peer, sock: socket | None) -> None:
        self.entered.append((transport, data))


@pytest.fixture
async def other() -> Other:
    return Other()


@pytest.fixture
async def port(other: Other) -> SharedPort:
    port = shared_port()
    port.protocols = (other, *port.protocols)
    return port


def arrive(port: SharedPort, *pieces: bytes) -> Wire:
    wire, detector = Wire(), port.detector()
    detector.connection_made(wire)
    for piece in pieces:
        detector.data_received(piece)
    return wire


async def test_protocol_receives_its_connection_with_the_bytes_read_before(port: SharedPort, other: Other) -> None:
    wire = arrive(port, b"OT", b"HER and")
    assert other.entered[0] == (wire, b"OTHER and")
    assert port.admission.connections() == 0  # its protocol counts it


async def test_connection_is_decided_by_the_bytes_after_a_common_prefix(port: SharedPort, other: Other) -> None:
    wire = arrive(port, b"O", b"PTIONS / HTTP/1.1\r\nhost: x\r\n", b"\r\n")
    assert isinstance(wire.protocol, HttpConnection)
    assert not other.entered
    await port.http.stop()


async def test_protocol_without_room_sends_its_busy_message(port: SharedPort, other: Other) -> None:
    other.room = False
    wire = arrive(port, MAGIC)
    assert (wire.written, wire.closed, other.entered) == (b"no room", True, [])


async def test_unknown_protocol_is_refused_beyond_the_head_limit(port: SharedPort, subtests: pytest.Subtests) -> None:
    for data in [b"x" * (MAX_HEAD_BYTES + 1), b"x" * (MAX_HEAD_BYTES + 1) + b"\r\n\r\n"]:
        with subtests.test(data=data):
            wire = arrive(port, data)
            assert (wire.written, wire.closed) == (TOO_LONG, True)

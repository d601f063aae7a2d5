"""The port of a node for other nodes: a connection reaches the store after it has proved the key, and not before."""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from unittest import mock

import msgspec
import pytest
import uvloop

from ropewalk.adapters.backends.ring import port as ring_port
from ropewalk.adapters.backends.ring.port import RingPort
from ropewalk.adapters.backends.workers.wire import BusConnection
from ropewalk.adapters.endpoints.admission import MAX_UNPROVEN, ConnectionAdmission, ConnectionLimits
from ropewalk.core.node_proofs import DialledNode, DiallingNode
from ropewalk.model.refusals import Refusal
from ropewalk.protocol.broky.frames import Error, Hello, Reason
from ropewalk.protocol.broky.tables import encode, read
from tests import certificates
from tests.waiting import until

KEY = "key of the ring"
UNLIMITED = ConnectionLimits()


def dialling(key: str = KEY) -> DiallingNode:
    return DiallingNode(key, "b", "a~1")


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(4, "little") + message


class Node:
    """The node "b". `admitted` has the connections that have proved the key, `received` the method names of their frames."""

    def __init__(self, limits: ConnectionLimits, tls: ssl.SSLContext | None) -> None:
        self.refusals: Counter[str] = Counter()
        self.admitted: list[BusConnection] = []
        self.received: list[str] = []
        self.writers: list[asyncio.StreamWriter] = []
        admission = ConnectionAdmission(limits, self.refusals, lambda: 0, lambda: 0)
        self.port = RingPort(self._accept, partial(DialledNode, KEY, "b"), admission, tls)
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._socket.setblocking(False)
        self.address: tuple[str, int] = self._socket.getsockname()

    def _accept(self) -> BusConnection:
        self.admitted.append(
            BusConnection(lambda bus, kind, number, name, body: self.received.append(name), self.admitted.remove)
        )
        return self.admitted[-1]

    def start(self) -> None:
        self.port.start([self._socket])

    async def stop(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
        for bus in list(self.admitted):
            bus.close()
        await self.port.stop()
        await asyncio.sleep(0)

    @property
    def unproven(self) -> int:
        return len(self.port._unproven)


@contextlib.asynccontextmanager
async def running(limits: ConnectionLimits = UNLIMITED, tls: ssl.SSLContext | None = None) -> AsyncIterator[Node]:
    node = Node(limits, tls)
    node.start()
    try:
        yield node
    finally:
        await node.stop()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, node: Node, tls: ssl.SSLContext | None = None) -> "Client":
        reader, writer = await asyncio.open_connection(*node.address, ssl=tls)
        node.writers.append(writer)
        return cls(reader, writer)

    def send(self, *messages: bytes) -> None:
        self.write(b"".join(map(framed, messages)))

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def receive(self) -> bytes:
        async with asyncio.timeout(60):
            return await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(4), "little"))

    async def rest(self) -> bytes:
        """Until the end of the connection."""
        async with asyncio.timeout(60):
            try:
                return await self._reader.read()
            except ConnectionResetError:
                return b""

    async def reason(self) -> str:
        """Of the rejection, after which the connection ends."""
        rejection = msgspec.msgpack.decode(await self.receive())
        assert rejection.pop("type") == "rejection"
        assert await self.rest() == b""
        return str(rejection["reason"])

    async def greet(self) -> None:
        a = dialling()
        self.send(a.challenge)
        self.send(a.prove(await self.receive()))
        assert await self.receive() == b""

    def close(self) -> None:
        self._writer.close()


async def test_node_with_the_key_is_welcomed_after_its_proof() -> None:
    async with running() as node:
        a, client = dialling(), await Client.open(node)
        client.send(a.challenge)
        response = await client.receive()
        assert node.admitted == []
        client.send(a.prove(response))
        assert await client.receive() == b""
        assert (len(node.admitted), node.unproven, node.refusals) == (1, 0, {})
        client.send(msgspec.msgpack.encode((3, 0, "note", ())))
        await until(lambda: node.received == ["note"])
        client.close()
        await until(lambda: not node.admitted)


async def test_proof_with_another_key_is_refused_with_a_reason() -> None:
    async with running() as node:
        stranger, client = dialling("another key"), await Client.open(node)
        client.send(stranger.challenge)
        await client.receive()
        client.send(stranger.prove(DialledNode("another key", "b").respond(stranger.challenge)))
        assert await client.reason() == "it does not have the key of this ring"
        assert (node.admitted, node.refusals) == ([], {Refusal.BAD_KEY: 1})


async def test_replayed_greeting_is_refused() -> None:
    async with running() as node:
        a, client = dialling(), await Client.open(node)
        client.send(a.challenge)
        proof = a.prove(await client.receive())
        client.send(proof)
        assert await client.receive() == b""
        again = await Client.open(node)
        again.send(a.challenge, proof)
        await again.receive()
        assert await again.reason() == "it does not have the key of this ring"
        assert len(node.admitted) == 1


STRANGERS = {
    "an empty frame": framed(b""),
    "garbage": framed(b"\xff" * 64),
    "the ring's key": framed(KEY.encode()),
    "a huge frame": (1 << 31).to_bytes(4, "little"),
    "a frame above the limit": framed(dialling().challenge + bytes(16 * 1024)),
    "a call of the bus": framed(msgspec.msgpack.encode((0, 1, "hello", ("a~1",)))),
    "a Broky client": encode(Hello(token=KEY.encode(), name="a~1")),
    "an HTTP client": b"GET /health HTTP/1.1\r\nHost: b\r\n\r\n",
    "a TLS client": b"\x16\x03\x01\x02\x00\x01" + bytes(512),
}


@pytest.mark.parametrize("data", STRANGERS.values(), ids=STRANGERS)
async def test_stranger_gets_no_answer(data: bytes) -> None:
    async with running() as node:
        client = await Client.open(node)
        client.write(data)
        assert await client.rest() == b""
        await until(lambda: node.refusals == {Refusal.BAD_KEY: 1})
        assert node.admitted == []


async def test_malformed_proof_is_refused_and_frames_behind_it_are_dropped() -> None:
    async with running() as node:
        client = await Client.open(node)
        client.send(dialling().challenge, b"a call of the bus", b"another")
        await client.receive()
        assert (await client.reason()).startswith("malformed greeting of a ring node")
        assert (node.admitted, node.received) == ([], [])


async def test_node_of_another_release_is_refused_with_the_reason_in_its_format() -> None:
    later = dialling().challenge.replace(b"ropewalk ring link 2", b"ropewalk ring link 3")
    broky_peer = b"\x10\0\0\0BRK1" + bytes(64) + dialling().challenge.replace(b"ropewalk ring link 2", b"ropewalk ring link 1")
    async with running() as node:
        client = await Client.open(node)
        client.send(later)
        assert "run different releases" in await client.reason()
        client = await Client.open(node)
        client.send(broky_peer)
        error = read(await client.rest())
        assert isinstance(error, Error)
        assert (error.reason, "run different releases" in error.text) == (Reason.UNKNOWN_VERSION, True)
        assert node.admitted == []


async def test_half_open_greeting_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_port, "PROOF_SECONDS", 0.05)
    async with running() as node:
        clients = [await Client.open(node) for _ in range(3)]
        clients[1].send(dialling().challenge)
        clients[2].write(framed(dialling().challenge)[:-1])
        for client in clients:
            await client.rest()
        await until(lambda: node.refusals == {Refusal.HEAD_TIMEOUT: 3})
        assert (node.admitted, node.unproven) == ([], 0)


async def flood(limits: ConnectionLimits, most: int, first: bytes, tls: ssl.SSLContext | None = None) -> None:
    async with running(limits, tls) as node:
        strangers: list[Client] = []
        for _ in range(most + 30):
            strangers.append(await Client.open(node))
            strangers[-1].write(first)
        await until(lambda: node.refusals[Refusal.HEAD_TIMEOUT] >= 30)
        assert node.unproven <= most
        trust = None if tls is None else certificates.trusting_context()
        client = await Client.open(node, trust)
        await client.greet()
        assert len(node.admitted) == 1
        for stranger in strangers[:30]:
            await stranger.rest()


@pytest.mark.parametrize(
    ("limits", "most"),
    [(UNLIMITED, MAX_UNPROVEN), (ConnectionLimits(descriptors=20), 20), (ConnectionLimits(descriptors=1), 1)],
    ids=["unlimited", "few descriptors", "no descriptors"],
)
@pytest.mark.parametrize("first", [b"", framed(dialling().challenge)], ids=["silent", "unproven"])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_flood_of_half_open_connections_does_not_lock_out_a_node(
    limits: ConnectionLimits, most: int, first: bytes, run: object
) -> None:
    assert callable(run)
    run(flood(limits, most, first))


def test_flood_of_unfinished_handshakes_does_not_lock_out_a_node() -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificates.CERTIFICATE, certificates.KEY)
    uvloop.run(flood(ConnectionLimits(descriptors=20), 20, b"\x16\x03\x01", tls))


async def test_refused_connections_that_stay_open_are_bounded_and_closed() -> None:
    async with running(ConnectionLimits(descriptors=20)) as node:
        clients = [await Client.open(node) for _ in range(50)]
        for client in clients:
            client.send(dialling().challenge, b"no proof")
        await until(lambda: node.refusals[Refusal.BAD_KEY] + node.refusals[Refusal.HEAD_TIMEOUT] >= 50)
        assert node.unproven <= 20
        await until(lambda: node.unproven == 0)


async def test_port_out_of_descriptors_accepts_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_port, "SCARCITY_PAUSE", 0.0)
    node = Node(UNLIMITED, None)
    loop = asyncio.get_running_loop()
    accept, failures = loop.sock_accept, iter([OSError(errno.EMFILE, "too many open files")] * 2)

    async def scarce(sock: socket.socket) -> object:
        for failure in failures:
            raise failure
        return await accept(sock)

    with mock.patch.object(loop, "sock_accept", scarce):
        node.start()
        client = await Client.open(node)
        await client.greet()
        assert node.refusals == {Refusal.DESCRIPTORS: 2}
        await node.stop()


async def test_stopped_port_keeps_proven_connections_and_closes_others() -> None:
    async with running() as node:
        proven, unproven = await Client.open(node), await Client.open(node)
        await proven.greet()
        await until(lambda: node.unproven == 1)
        await node.port.stop()
        assert await unproven.rest() == b""
        proven.send(msgspec.msgpack.encode((3, 0, "note", ())))
        await until(lambda: node.received == ["note"])
        with pytest.raises(ConnectionRefusedError):
            await Client.open(node)

"""The port of a node for other nodes, and its port for clients, against nodes without the key, clients and floods."""

import asyncio
import contextlib
import shutil
import signal
import ssl
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import aiohttp
import msgspec
import pytest

from ropewalk.core.node_proofs import DialledNode, DiallingNode
from ropewalk.core.signatures import RING_PHRASE, derive
from ropewalk.model.errors import NotProven
from ropewalk.protocol.broky.frames import Error, Hello, Reason
from ropewalk.protocol.broky.tables import encode, read
from tests import broky_client
from tests.cable import cable
from tests.certificates import CERTIFICATE, RENEWED_CERTIFICATE, RENEWED_KEY, trusting_context
from tests.certificates import KEY as KEY_FILE
from tests.metrics import metrics_when
from tests.ring.ring import RING_SECRET, SECONDS, Ring, running_ring, streams_of_all_shards, until_published
from tests.server import publish, running_server
from tests.services import free_port
from tests.waiting import until

KEY = derive(RING_SECRET, RING_PHRASE)
MAX_UNPROVEN = 256


@pytest.fixture(scope="module", params=[{}, {"a": 2, "b": 2}], ids=["one process each", "with workers"])
def shared_ring(request: pytest.FixtureRequest) -> Iterator[Ring]:
    """In public mode, in which clients and publishers need no key."""
    with running_ring("ab", workers=request.param) as ring:
        yield ring


@pytest.fixture
async def ring(shared_ring: Ring) -> Ring:
    await shared_ring.healthy()
    return shared_ring


class Client:
    """Sends any bytes to a port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, *messages: bytes) -> None:
        """In frames of the ring."""
        self.write(b"".join(len(message).to_bytes(4, "little") + message for message in messages))

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def receive(self) -> bytes:
        async with asyncio.timeout(SECONDS):
            return await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(4), "little"))

    async def rest(self) -> bytes:
        """Until the end of the connection."""
        async with asyncio.timeout(SECONDS):
            try:
                return await self._reader.read()
            except ConnectionResetError:
                return b""

    def close(self) -> None:
        self._writer.transport.abort()


@contextlib.asynccontextmanager
async def client(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Client]:
    made = Client(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))
    try:
        yield made
    finally:
        made.close()


async def test_node_without_the_key_is_refused_with_a_reason(ring: Ring) -> None:
    dialling = DiallingNode("a guess", "a", "b~1")
    async with client(ring.ring_ports["a"]) as stranger:
        stranger.send(dialling.challenge)
        with pytest.raises(NotProven):
            dialling.prove(await stranger.receive())
        stranger.send(dialling.prove(DialledNode("a guess", "a").respond(dialling.challenge)), b"\0" * 64)
        rejection = msgspec.msgpack.decode(await stranger.receive())
        assert rejection == {"type": "rejection", "reason": "it does not have the key of this ring"}
        assert await stranger.rest() == b""


async def test_node_with_the_key_is_welcomed(ring: Ring) -> None:
    """So that the test above cannot pass for another reason."""
    dialling = DiallingNode(KEY, "a", "x~1")
    async with client(ring.ring_ports["a"]) as node:
        node.send(dialling.challenge)
        node.send(dialling.prove(await node.receive()))
        assert await node.receive() == b""


STRANGERS = {
    "a Broky client": encode(Hello(token=KEY.encode())),
    "an HTTP client": b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n",
    "a publisher": b'POST /_broadcast HTTP/1.1\r\nHost: a\r\nContent-Length: 26\r\n\r\n{"stream":"s","data":"\\"1\\""}',
    "garbage": b"\xff" * 100_000,
    "a huge frame": (1 << 30).to_bytes(4, "little") + bytes(1 << 20),
    "the key": len(KEY).to_bytes(4, "little") + KEY.encode(),
}


@pytest.mark.parametrize("data", STRANGERS.values(), ids=STRANGERS)
async def test_stranger_at_the_port_of_the_ring_gets_no_answer(ring: Ring, data: bytes) -> None:
    async with client(ring.ring_ports["a"]) as stranger:
        stranger.write(data)
        assert await stranger.rest() == b""


async def test_port_for_clients_does_not_admit_nodes(ring: Ring) -> None:
    dialling = DiallingNode(KEY, "a", "b~1")
    async with client(ring.ports["a"]) as node:
        node.send(dialling.challenge)
        assert await node.rest() == b""


OLDER_GREETING = bytes.fromhex(
    "7c0000001c00000042524b3108000c0008000400060008000400000000000000140000000800000010000000180000000800000000000000"
) + b"C\0\0\0\x82\xa4type\xb4ropewalk ring link 1\xa5nonce\xc4 ".ljust(72, b"\0")
"""The first frame of a node that expects to be admitted at the port for clients, with Broky frames."""


async def test_node_of_an_older_release_is_refused_in_its_format(ring: Ring) -> None:
    async with client(ring.ring_ports["a"]) as node:
        node.write(OLDER_GREETING)
        answer = read(await node.rest())
        assert isinstance(answer, Error)
        assert (answer.reason, "run the same release at all nodes" in answer.text) == (Reason.UNKNOWN_VERSION, True)
    async with broky_client.stranger(ring.nodes["a"]) as old:
        old.writer.write(OLDER_GREETING)
        assert (await old.ended()).reason is Reason.MALFORMED


@pytest.mark.parametrize("workers", [{}, {"a": 2, "b": 2}], ids=["one process each", "with workers"])
async def test_flood_of_half_open_connections_locks_out_neither_nodes_nor_clients(workers: dict[str, int]) -> None:
    dialling = DiallingNode(KEY, "b", "x~1")
    with running_ring("ab", workers=workers) as ring:
        await ring.healthy()
        async with contextlib.AsyncExitStack() as stack:
            strangers = [await stack.enter_async_context(client(ring.ring_ports["b"])) for _ in range(2 * MAX_UNPROVEN)]
            for stranger in strangers[::2]:
                stranger.send(dialling.challenge)
            ring.kill("a")
            ring.start("a")
            more = [await stack.enter_async_context(client(ring.ring_ports["b"])) for _ in range(2 * MAX_UNPROVEN)]
            await ring.healthy()
            async with cable(ring.nodes["b"]) as subscriber:
                for stream in streams_of_all_shards():
                    await subscriber.subscribe(stream)
                    assert (await until_published(ring.nodes["a"], stream, "1"))["offset"] == 1
                    assert (await subscriber.expect("message"))["message"] == 1
            assert await strangers[1].rest() == b""
            assert more
        name = "refusals_total{head_timeout}"
        await metrics_when(ring.nodes["b"], lambda now: now[name] >= 3 * MAX_UNPROVEN)


async def test_ring_port_of_its_own_is_used_and_the_port_in_use_is_named() -> None:
    """--ring has the address behind a forwarding, and --ring_port the port of this host."""
    forwarded, own = free_port(), free_port()
    flags = ("--public", "--secret", RING_SECRET, "--ring", f"a=127.0.0.1:{forwarded}", "--ring_node", "a")
    with running_server(*flags, "--ring_port", str(own)) as server:
        assert (await publish(server, "s", "1"))["offset"] == 1
        async with client(own) as node:
            dialling = DiallingNode(KEY, "a", "x~1")
            node.send(dialling.challenge)
            assert dialling.prove(await node.receive())
        with pytest.raises(ConnectionRefusedError):
            async with client(forwarded):
                pass
        for workers in ("1", "2"):
            with (
                pytest.raises(AssertionError, match=f"cannot listen on 127.0.0.1:{own}: another program does.* --ring_port"),
                running_server(*flags, "--ring_port", str(own), "--workers", workers),
            ):
                pass


@pytest.mark.parametrize("workers", [{}, {"a": 2}], ids=["one process", "with workers"])
async def test_renewed_certificate_is_used_at_the_port_of_the_ring_too(workers: dict[str, int], tmp_path: Path) -> None:
    used, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(CERTIFICATE, used)
    shutil.copy(KEY_FILE, key)
    with running_ring("a", "--ssl_cert", str(used), "--ssl_key", str(key), workers=workers) as ring:

        async def serves(certificate: str) -> bool:
            try:
                dialling, tls = DiallingNode(KEY, "a", "x~1"), trusting_context(certificate)
                async with client(ring.ring_ports["a"], tls) as node:
                    node.send(dialling.challenge)
                    return bool(dialling.prove(await node.receive()))
            except ssl.SSLError:
                return False

        assert (await serves(CERTIFICATE), await serves(RENEWED_CERTIFICATE)) == (True, False)
        shutil.copy(RENEWED_CERTIFICATE, used)
        shutil.copy(RENEWED_KEY, key)
        ring.nodes["a"].process.send_signal(signal.SIGHUP)
        await until(partial(serves, RENEWED_CERTIFICATE), "the port of the ring has the renewed certificate")


async def test_nodes_that_all_have_new_addresses_find_each_other_by_the_settings() -> None:
    """As after an upgrade that gives the ring ports of its own: what they stored has the old addresses only."""
    streams = streams_of_all_shards()
    with running_ring("ab", journal=True, workers={"b": 2}) as ring:
        await ring.settled()
        before = {stream: await publish(ring.nodes["a"], stream, "1") for stream in streams}
        for name in "ab":
            ring.stop(name)
            ring.ring_ports[name] = free_port()
        ring.start_all("ab")
        await ring.healthy()
        for name in "ab":
            for stream in streams:
                position = await until_published(ring.nodes[name], stream, "2")
                assert position["epoch"] == before[stream]["epoch"]
        async with aiohttp.ClientSession() as http, http.get(f"{ring.nodes['a'].url}/api/ring") as response:
            addresses = {node["name"]: node["address"] for node in (await response.json())["nodes"]}
        assert addresses == {name: f"127.0.0.1:{port}" for name, port in ring.ring_ports.items()}

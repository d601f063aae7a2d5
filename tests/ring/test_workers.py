"""A ring whose nodes have workers behaves as one server, at each worker of each node, while processes end."""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ropewalk.client import Message, connect
from ropewalk.protocol.broky.frames import Format, Gap, Pushed, Reason, Run
from tests import broky_client
from tests.cable import cable
from tests.process_tree import is_running, store, worker_of, workers
from tests.ring.load import Load, Receiver
from tests.ring.ring import SECONDS, Ring, running_ring, streams_of_all_shards, until_published
from tests.server import RunningServer, publish
from tests.waiting import until
from tests.worker_clients import ATTEMPTS, one_client_at_each

TWO_EACH = {"a": 2, "b": 2}
FIXTURES = Path(__file__).parents[1] / "fixtures"
CERTIFICATE, KEY = str(FIXTURES / "tls_cert.pem"), str(FIXTURES / "tls_key.pem")


@pytest.fixture(scope="module")
def shared_ring() -> Iterator[Ring]:
    with running_ring("ab", "--sse", "--history_limit", "100000", workers=TWO_EACH) as ring:
        yield ring


@pytest.fixture
async def ring(shared_ring: Ring) -> Ring:
    await shared_ring.healthy()
    return shared_ring


async def test_clients_of_each_worker_of_each_node_receive_all_messages(ring: Ring) -> None:
    a, b = ring.nodes["a"], ring.nodes["b"]
    streams = streams_of_all_shards(prefix="each worker")
    async with one_client_at_each(a) as at_a, one_client_at_each(b) as at_b:
        clients = [*at_a.values(), *at_b.values()]
        assert len(clients) == 4
        for stream in streams:
            for client in clients:
                await client.subscribe(stream)
            for number in range(8):  # each over a new connection, to any worker
                assert (await publish((a, b)[number % 2], stream, str(number)))["offset"] == number + 1
            for client in clients:
                assert [frame["message"] for frame in await client.messages_up_to(8)] == list(range(8))


async def test_push_over_tcp_reaches_clients_of_each_protocol_at_the_other_node(ring: Ring) -> None:
    async with (
        cable(ring.nodes["b"]) as web,
        broky_client.client(ring.nodes["b"]) as subscriber,
        broky_client.client(ring.nodes["a"]) as pusher,
        aiohttp.ClientSession() as http,
        http.get(f"{ring.nodes['b'].url}/events", params={"stream": "pushed"}) as events,
    ):
        await line_with(events, b"confirm_subscription")
        await web.subscribe("pushed")
        await subscriber.subscribe(b"pushed")
        pusher.send(Run(7, 1, key=b"pushed", payload=b'{"n":1}', format=Format.JSON))
        assert (await pusher.expect(Pushed)).refs == (7,)
        assert (await web.expect("message"))["offset"] == 1
        assert (await subscriber.expect(Run)).offset == 1
        await line_with(events, b'data: {"n":1}')


async def line_with(events: aiohttp.ClientResponse, wanted: bytes) -> None:
    async with asyncio.timeout(SECONDS):
        while wanted not in await events.content.readline():
            pass


async def test_each_worker_reports_the_ring_and_its_node(ring: Ring) -> None:
    for name, node in ring.nodes.items():
        asked: set[int] = set()
        for _ in range(ATTEMPTS):
            async with one_connection(node) as (http, worker):
                asked.add(worker)
                async with http.get("/api/ring") as response:
                    report = await response.json()
                    assert (response.status, report["node"], report["unavailable"]) == (200, name, 0)
                    assert {each["name"]: each["alive"] for each in report["nodes"]} == {"a": True, "b": True}
                async with http.get("/health") as response:
                    assert await response.json() == {"status": "ok"}
                async with http.get("/metrics") as response:
                    assert "ropewalk_workers 2" in await response.text()
            if asked == set(workers(node)):
                break
        assert asked == set(workers(node))


@contextlib.asynccontextmanager
async def one_connection(node: RunningServer) -> AsyncIterator[tuple[aiohttp.ClientSession, int]]:
    """A session with one connection, and the worker that serves it."""
    sockets: list[socket.socket] = []

    def made(address: aiohttp.AddrInfoType) -> socket.socket:
        sockets.append(socket.socket(*address[:3]))
        return sockets[-1]

    async with aiohttp.ClientSession(node.url, connector=aiohttp.TCPConnector(limit=1, socket_factory=made)) as http:
        async with http.get("/health") as response:
            await response.read()
        yield http, worker_of(node, sockets[0].getsockname()[1])
        assert len(sockets) == 1


# --- processes that end -----------------------------------------------------------------------------------------------


def is_replaced(node: RunningServer, worker: int) -> bool:
    return not is_running(worker) and len(workers(node)) == 2


async def test_clients_of_a_killed_worker_resume_and_clients_of_other_nodes_notice_nothing(ring: Ring) -> None:
    a, b = ring.nodes["a"], ring.nodes["b"]
    streams = [f"killed/{number}" for number in range(8)]  # of both nodes
    async with cable(b) as other, one_client_at_each(a) as clients:
        for client in (other, *clients.values()):
            for stream in streams:
                await client.subscribe(stream)
        receiver = Receiver(other)
        load = Load(ring, "b", streams)
        for worker, client in clients.items():
            await load.one_more_round()
            os.kill(worker, signal.SIGKILL)
            await client.closed()
            await until(partial(is_replaced, a, worker), "the worker is replaced")
            await load.one_more_round()
        await load.end()
        for stream, frames in (await receiver.receive(load.total)).items():
            assert [frame["message"] for frame in frames] == list(range(len(load.positions[stream])))
        await until(lambda: a.log().count("serves again") == 2, "both workers serve")
        for former in clients.values():
            async with cable(a, sid=former.sid) as client:
                client.positions = former.positions
                for stream, positions in load.positions.items():
                    before = [frame["message"] for frame in former.received if frame.get("stream_id") == stream]
                    missed = [frame["message"] for frame in await client.ask_history(stream)]
                    assert before + missed == list(range(len(positions))), stream


async def test_killed_store_process_with_a_journal_restarts_with_its_epochs() -> None:
    streams = streams_of_all_shards()
    with running_ring("ab", journal=True, workers=TWO_EACH) as ring:
        await ring.healthy()
        a, b = ring.nodes["a"], ring.nodes["b"]
        async with cable(a) as first, cable(b) as second:
            for client in (first, second):
                for stream in streams:
                    await client.subscribe(stream)
            before = {stream: await publish(b, stream, "0") for stream in streams}
            former, kept = store(a), set(workers(a))
            os.kill(former, signal.SIGKILL)
            for number, node in enumerate((b, a), 1):
                for stream in streams:
                    position = await until_published(node, stream, number)
                    assert (position["epoch"], position["offset"]) == (before[stream]["epoch"], number + 1)
            assert store(a) != former
            assert set(workers(a)) == kept
            for client in (first, second):
                received = [await client.expect("message") for _ in range(3 * len(streams))]
                for stream in streams:
                    assert [frame["offset"] for frame in received if frame["stream_id"] == stream] == [1, 2, 3]
        await ring.healthy()


async def test_sighup_replaces_the_workers_of_a_node_and_clients_miss_nothing(ring: Ring) -> None:
    streams = [f"replaced/{number}" for number in range(8)]
    a, b = ring.nodes["a"], ring.nodes["b"]
    former, kept = set(workers(a)), store(a)
    received: list[Any] = []
    async with connect(a.url) as client, cable(b) as other:
        subscription = await client.subscribe(streams[0])

        async def receive() -> None:
            async for message in subscription:
                received.append(message.data if isinstance(message, Message) else message)

        receiving = asyncio.ensure_future(receive())
        for stream in streams:
            await other.subscribe(stream)
        receiver = Receiver(other)
        load = Load(ring, "b", streams)
        await load.one_more_round()
        a.process.send_signal(signal.SIGHUP)
        await until(lambda: "all workers were replaced" in a.log(), "all workers are replaced")
        await load.one_more_round()
        await load.end()
        for stream, frames in (await receiver.receive(load.total)).items():
            assert [frame["message"] for frame in frames] == list(range(len(load.positions[stream])))
        await until(lambda: len(received) >= len(load.positions[streams[0]]), "the client has all messages")
        assert received == list(range(len(load.positions[streams[0]])))
        receiving.cancel()
    assert store(a) == kept
    assert len(workers(a)) == 2
    assert not former & set(workers(a))
    await ring.healthy()


async def test_subscribers_of_streams_without_history_get_a_gap_when_a_store_restarts() -> None:
    with running_ring("ab", "--history_limit", "0", workers=TWO_EACH) as ring:
        await ring.healthy()
        streams = streams_of_all_shards()  # b holds some of them
        async with broky_client.client(ring.nodes["a"]) as subscriber:
            for stream in streams:
                await subscriber.subscribe(stream.encode())
            os.kill(store(ring.nodes["b"]), signal.SIGKILL)
            gap = await subscriber.expect(Gap)
            assert (gap.key.decode() in streams, gap.reason) == (True, Reason.TRIMMED)


# --- TLS --------------------------------------------------------------------------------------------------------------


async def test_nodes_with_tls_reach_the_store_of_a_node_with_workers() -> None:
    tls = ssl.create_default_context(cafile=CERTIFICATE)
    flags = ("--ssl_cert", CERTIFICATE, "--ssl_key", KEY, "--ring_ca_file", CERTIFICATE)
    with running_ring("ab", *flags, workers={"a": 2}) as ring:
        a, b = ring.nodes["a"], ring.nodes["b"]
        await ring.healthy(tls)
        async with cable(a, ssl=tls) as first, cable(b, ssl=tls) as second, aiohttp.ClientSession() as http:
            for number, stream in enumerate(streams_of_all_shards()):
                for client in (first, second):
                    await client.subscribe(stream)
                large = "x" * 500_000
                body = {"stream": stream, "data": f'"{large}"'}
                async with http.post(f"{(a, b)[number % 2].url}/_broadcast", json=body, ssl=tls) as response:
                    assert response.status == 201, await response.text()
                for client in (first, second):
                    assert (await client.expect("message"))["message"] == large

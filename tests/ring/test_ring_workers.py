"""A ring whose nodes have workers is one server too: whichever worker of whichever node one talks to, and whatever ends."""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
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
from tests.ring.ring import WITHIN, Ring, running_ring, streams_of_all_shards, try_to_publish
from tests.server import RunningServer, publish
from tests.worker_clients import ATTEMPTS, one_client_at_each

TWO_EACH = {"a": 2, "b": 2}
FIXTURES = Path(__file__).parents[1] / "fixtures"
CERTIFICATE, KEY = str(FIXTURES / "tls_cert.pem"), str(FIXTURES / "tls_key.pem")


@pytest.fixture(scope="module")
def shared_ring() -> Iterator[Ring]:
    with running_ring("ab", "--sse", workers=TWO_EACH) as ring:
        yield ring


@pytest.fixture
async def ring(shared_ring: Ring) -> Ring:
    await shared_ring.healthy()
    return shared_ring


async def test_clients_of_every_worker_of_every_node_hear_what_any_of_them_takes(ring: Ring) -> None:
    a, b = ring.nodes["a"], ring.nodes["b"]
    streams = streams_of_all_shards()
    async with one_client_at_each(a) as at_a, one_client_at_each(b) as at_b:
        clients = [*at_a.values(), *at_b.values()]
        assert len(clients) == 4
        for stream in streams:
            for client in clients:
                await client.subscribe(stream)
            for number in range(8):  # each over a connection of its own, to any worker
                assert (await publish((a, b)[number % 2], stream, str(number)))["offset"] == number + 1
            for client in clients:
                assert [frame["message"] for frame in await client.messages_up_to(8)] == list(range(8))


async def test_a_push_over_tcp_comes_to_clients_of_every_kind_at_the_other_node(ring: Ring) -> None:
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
    async with asyncio.timeout(WITHIN):
        while wanted not in await events.content.readline():
            pass


async def test_every_worker_tells_of_the_ring_and_of_its_node(ring: Ring) -> None:
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
    """For several requests; and the worker that answers them."""
    sockets: list[socket.socket] = []

    def made(address: aiohttp.AddrInfoType) -> socket.socket:
        sockets.append(socket.socket(*address[:3]))
        return sockets[-1]

    async with aiohttp.ClientSession(node.url, connector=aiohttp.TCPConnector(limit=1, socket_factory=made)) as http:
        async with http.get("/health") as response:
            await response.read()
        yield http, worker_of(node, sockets[0].getsockname()[1])
        assert len(sockets) == 1


# --- what ends --------------------------------------------------------------------------------------------------------


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN):
        while not holds():
            await asyncio.sleep(0.02)


def is_replaced(node: RunningServer, worker: int) -> bool:
    return not is_running(worker) and len(workers(node)) == 2


async def until_published(node: RunningServer, stream: str, data: object, uid: str) -> dict[str, Any]:
    """Again as long as the server asks for that, or as the worker that was asked has ended."""
    async with asyncio.timeout(WITHIN):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                status, body = await try_to_publish(node, stream, data, uid=uid)
                if status == 201:
                    position: dict[str, Any] = body["publications"][0]
                    return position
                assert status == 503, body
            await asyncio.sleep(0.05)


class SteadyPublisher:
    """Publishes at one node to some streams in turn, one publication at a time, each of which must be taken at once."""

    def __init__(self, node: RunningServer, streams: list[str]) -> None:
        self._node = node
        self._streams = streams
        self._ending = False
        self.published = dict.fromkeys(streams, 0)
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        async with aiohttp.ClientSession() as http:
            while not self._ending:
                for stream in self._streams:
                    body = {"stream": stream, "data": self.published[stream]}
                    async with http.post(f"{self._node.url}/_broadcast", json=body) as response:
                        assert response.status == 201, await response.text()
                    self.published[stream] += 1

    async def some_more(self) -> None:
        """Everything that was asked for before this is through."""
        wanted = {stream: count + 2 for stream, count in self.published.items()}
        await until(lambda: self._task.done() or all(self.published[each] >= wanted[each] for each in wanted))
        if self._task.done():
            self._task.result()

    async def end(self) -> None:
        self._ending = True
        await self._task


async def test_a_worker_that_is_killed_costs_its_clients_a_reconnect_and_other_nodes_nothing(ring: Ring) -> None:
    a, b = ring.nodes["a"], ring.nodes["b"]
    streams = [f"killed/{number}" for number in range(8)]  # of both nodes
    async with cable(b) as witness, one_client_at_each(a) as clients:
        for client in (witness, *clients.values()):
            for stream in streams:
                await client.subscribe(stream)
        publisher = SteadyPublisher(b, streams)
        for worker, client in clients.items():
            await publisher.some_more()
            os.kill(worker, signal.SIGKILL)
            await client.closed()
            await until(partial(is_replaced, a, worker))
            await publisher.some_more()
        await publisher.end()
        total = sum(publisher.published.values())
        heard = [(await witness.expect("message")) for _ in range(total)]
        for stream, count in publisher.published.items():
            assert [frame["message"] for frame in heard if frame["stream_id"] == stream] == list(range(count))
        await until(lambda: a.log().count("serves again") == 2)
        for former in clients.values():
            async with cable(a, sid=former.sid) as client:
                client.positions = former.positions
                for stream, count in publisher.published.items():
                    before = [frame["message"] for frame in former.received if frame.get("stream_id") == stream]
                    missed = [frame["message"] for frame in await client.ask_history(stream)]
                    assert before + missed == list(range(count)), stream


async def test_a_store_that_is_killed_is_away_for_a_moment_and_goes_on_in_its_epochs() -> None:
    streams = streams_of_all_shards()
    with running_ring("ab", journal=True, workers=TWO_EACH) as ring:
        await ring.healthy()
        a, b = ring.nodes["a"], ring.nodes["b"]
        async with cable(a) as first, cable(b) as second:
            for client in (first, second):
                for stream in streams:
                    await client.subscribe(stream)
            before = {stream: await publish(b, stream, "0") for stream in streams}
            former, kept_on = store(a), set(workers(a))
            os.kill(former, signal.SIGKILL)
            for number, node in enumerate((b, a), 1):
                for stream in streams:
                    position = await until_published(node, stream, number, f"{number}")
                    assert (position["epoch"], position["offset"]) == (before[stream]["epoch"], number + 1)
            assert store(a) != former
            assert set(workers(a)) == kept_on
            for client in (first, second):
                heard = [await client.expect("message") for _ in range(3 * len(streams))]
                for stream in streams:
                    assert [frame["offset"] for frame in heard if frame["stream_id"] == stream] == [1, 2, 3]
        await ring.healthy()


async def test_sighup_replaces_the_workers_of_a_node_and_nobody_misses_anything() -> None:
    streams = [f"replaced/{number}" for number in range(8)]
    with running_ring("ab", workers=TWO_EACH) as ring:
        await ring.healthy()
        a, b = ring.nodes["a"], ring.nodes["b"]
        former, kept = set(workers(a)), store(a)
        received: list[Any] = []
        async with connect(a.url) as client, cable(b) as witness:
            subscription = await client.subscribe(streams[0])

            async def receive() -> None:
                async for message in subscription:
                    received.append(message.data if isinstance(message, Message) else message)

            receiving = asyncio.ensure_future(receive())
            for stream in streams:
                await witness.subscribe(stream)
            publisher = SteadyPublisher(b, streams)
            await publisher.some_more()
            a.process.send_signal(signal.SIGHUP)
            await until(lambda: "all workers were replaced" in a.log())
            await publisher.some_more()
            await publisher.end()
            heard = [await witness.expect("message") for _ in range(sum(publisher.published.values()))]
            for stream, count in publisher.published.items():
                assert [frame["message"] for frame in heard if frame["stream_id"] == stream] == list(range(count))
            await until(lambda: len(received) >= publisher.published[streams[0]])
            assert received == list(range(publisher.published[streams[0]]))
            receiving.cancel()
        assert store(a) == kept
        assert len(workers(a)) == 2
        assert not former & set(workers(a))
        await ring.healthy()


async def test_subscribers_of_streams_that_keep_nothing_are_told_when_a_store_was_away() -> None:
    with running_ring("ab", "--history_limit", "0", workers=TWO_EACH) as ring:
        await ring.healthy()
        streams = streams_of_all_shards()  # some of them are held by b
        async with broky_client.client(ring.nodes["a"]) as subscriber:
            for stream in streams:
                await subscriber.subscribe(stream.encode())
            os.kill(store(ring.nodes["b"]), signal.SIGKILL)
            gap = await subscriber.expect(Gap)
            assert (gap.key.decode() in streams, gap.reason) == (True, Reason.TRIMMED)


async def test_a_store_that_stands_still_is_noticed_by_other_nodes_and_is_back_when_it_goes_on() -> None:
    streams = streams_of_all_shards()
    with running_ring("ab", workers={"b": 2}) as ring:
        await ring.healthy()
        a = ring.nodes["a"]
        for stream in streams:
            assert (await try_to_publish(a, stream, "1"))[0] == 201
        standing = store(ring.nodes["b"])
        os.kill(standing, signal.SIGSTOP)
        try:
            statuses = [status for status, _ in await asyncio.gather(*(try_to_publish(a, stream, "2") for stream in streams))]
            assert sorted(set(statuses)) == [201, 503]
            lost = streams[statuses.index(503)]
            async with asyncio.timeout(WITHIN):
                while "not reached" not in (await try_to_publish(a, lost, "3"))[1].get("error", ""):
                    pass
        finally:
            os.kill(standing, signal.SIGCONT)
        await ring.healthy()
        for stream in streams:
            assert (await try_to_publish(a, stream, "4"))[0] == 201


# --- TLS --------------------------------------------------------------------------------------------------------------


async def test_nodes_with_tls_reach_the_store_behind_workers_too() -> None:
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

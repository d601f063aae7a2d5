"""A node of several processes is one node: every worker returns the state of the whole node."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from ropewalk.client import Message, Position
from tests.cable import Cable, identifier
from tests.clients.credentials import SECRET, token
from tests.metrics import metrics_when
from tests.process_tree import worker_of, workers
from tests.scenarios.python_clients import CABLE, TCP
from tests.server import RunningServer, publish, running_server
from tests.services import nats_server, redis_server
from tests.waiting import SECONDS, until
from tests.worker_clients import ATTEMPTS

FLAGS = ("--jwt_secret", SECRET, "--public_streams", "--streams_presence", "--streams_whisper", "--sse", "--workers", "2")
KEYS = ("--broadcast_key", "none", "--api_secret", "none")
USER = {"jid": token("user/1")}


@pytest.fixture(scope="module", params=["memory", "redis", "nats"])
def broker(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(broker: str) -> Iterator[RunningServer]:
    with contextlib.ExitStack() as stack:
        match broker:
            case "redis":
                chosen: tuple[str, ...] = ("--broker", "redis", "--redis_url", stack.enter_context(redis_server()).url)
            case "nats":
                chosen = ("--broker", "nats", "--nats_servers", stack.enter_context(nats_server()).url)
            case _:
                chosen = ("--broker", "memory")
        yield stack.enter_context(running_server(*FLAGS, *KEYS, *chosen))


class Worker:
    """One persistent connection to one worker, for requests, and a client of it."""

    def __init__(self, server: RunningServer, http: aiohttp.ClientSession, client: Cable) -> None:
        self._server = server
        self.http = http
        self.client = client

    async def get(self, path: str) -> Any:
        return await self._ask("GET", path, 200)

    async def post(self, path: str, body: object) -> Any:
        return await self._ask("POST", path, 201, json=body)

    async def _ask(self, method: str, path: str, expected: int, **request: Any) -> Any:
        """Repeats the request after a 503."""
        deadline = time.monotonic() + SECONDS
        while True:
            async with self.http.request(method, path, **request) as response:
                if response.status == expected:
                    return await response.json()
                assert (response.status, time.monotonic() < deadline) == (503, True), await response.text()
            await asyncio.sleep(0.1)


async def _connected(server: RunningServer) -> tuple[int, aiohttp.ClientSession]:
    """The worker of a connection that is used for all requests."""
    made = socket.socket()
    connector = aiohttp.TCPConnector(limit=1, keepalive_timeout=600, socket_factory=lambda address: made)
    http = aiohttp.ClientSession(server.url, connector=connector)
    async with http.get("/health") as response:
        await response.read()
        return worker_of(server, made.getsockname()[1]), http


@contextlib.asynccontextmanager
async def each_worker(server: RunningServer) -> AsyncIterator[list[Worker]]:
    sessions: dict[int, aiohttp.ClientSession] = {}
    clients: dict[int, Cable] = {}
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(ATTEMPTS):
            if len(sessions) == len(clients) == len(workers(server)):
                break
            pid, http = await _connected(server)
            stack.push_async_callback(http.close)
            sessions.setdefault(pid, http)
            client = await Cable.connect(server.cable, params=USER)
            stack.push_async_callback(client.close)
            await client.welcomed()
            clients.setdefault(worker_of(server, client.port), client)
        assert sessions.keys() == clients.keys() == workers(server).keys()
        yield [Worker(server, sessions[pid], clients[pid]) for pid in workers(server)]


async def test_streams_history_and_members_are_the_same_at_every_worker(server: RunningServer) -> None:
    async with each_worker(server) as both:
        for number, worker in enumerate(both):
            for text in ("a", "b"):
                await worker.post("/api/publish", {"stream": "rest", "data": json.dumps(f"{text}{number}")})
            await worker.client.send(command="subscribe", identifier=identifier("rest"), presence={"id": f"member {number}"})
            await worker.client.until("confirm_subscription")
        await until(lambda: _have_members(both, "rest", 2))
        for path in (
            "/api/streams",
            "/api/streams/rest/history?after=1&limit=2",
            "/api/presence/rest/users?limit=1",
        ):
            first, second = [await worker.get(path) for worker in both]
            assert first == second, path
        page = await both[0].get("/api/streams/rest/history?after=0&limit=10")
        assert [message["message"] for message in page["messages"]] == ["a0", "b0", "a1", "b1"]
        members = (await both[1].get("/api/presence/rest/users"))["records"]
        assert [member["id"] for member in members] == ["member 0", "member 1"]


async def _have_members(both: list[Worker], stream: str, count: int) -> bool:
    pages = [await worker.get(f"/api/presence/{stream}/users") for worker in both]
    return all(page["total"] == count for page in pages)


async def test_whispers_reach_clients_of_other_workers_but_not_their_sender(server: RunningServer) -> None:
    async with each_worker(server) as both:
        for worker in both:
            await worker.client.subscribe("whispers")
        for sender, receiver in (both, both[::-1]):
            await sender.client.send(command="whisper", identifier=identifier("whispers"), data={"typing": True})
            assert await receiver.client.messages(1) == [{"typing": True}]
            await sender.client.quiet()


async def test_event_streams_of_every_worker_carry_messages_published_at_any(server: RunningServer) -> None:
    async with each_worker(server) as both, contextlib.AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(worker.http.get("/events", params={"stream": "sse", **USER})) for worker in both
        ]
        received = [b"", b""]
        for place, events in enumerate(streams):
            while b"confirm_subscription" not in received[place]:
                received[place] += await events.content.readany()
        for number in range(6):
            await publish(server, "sse", json.dumps(f"message {number}"))
        for place, events in enumerate(streams):
            while b"message 5" not in received[place]:
                received[place] += await events.content.readany()
            assert [received[place].count(b"message %d" % number) for number in range(6)] == [1] * 6


async def test_remote_disconnect_at_any_worker_ends_the_sessions_of_all(server: RunningServer, broker: str) -> None:
    for place in (0, 1):
        async with each_worker(server) as both:
            await metrics_when(server, lambda now: now["sessions"] >= len(both))
            assert [await worker.get("/health") for worker in both] == [{"status": "ok"}] * 2
            command = {"command": "disconnect", "payload": {"identifier": "user/1", "reconnect": False}}
            answer = await both[place].post("/api/publish", command)
            if broker == "memory":  # a node of a cluster counts the sessions that it has ended itself
                assert answer["disconnected"] >= len(both)
            for worker in both:
                await worker.client.expect("disconnect", reason="remote", reconnect=False)


async def until_all_metrics_pages_have(server: RunningServer, line: str) -> None:
    """Workers exchange their reports once a second."""
    found: dict[int, aiohttp.ClientSession] = {}
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(ATTEMPTS):
            if len(found) == len(workers(server)):
                break
            pid, http = await _connected(server)
            stack.push_async_callback(http.close)
            found.setdefault(pid, http)
        assert len(found) == len(workers(server))

        async def all_pages_have_it() -> bool:
            pages = []
            for http in found.values():
                async with http.get("/metrics") as response:
                    pages.append(await response.text())
            return all(line in page.splitlines() for page in pages)

        await until(all_pages_have_it)


async def test_connections_are_counted_and_limited_for_the_whole_node() -> None:
    with running_server("--public", "--workers", "2", "--max_conn", "6") as small:
        clients = [await Cable.connect(small.cable) for _ in range(6)]
        for client in clients:
            await client.welcomed()
        await until_all_metrics_pages_have(small, "ropewalk_sessions 6.0")
        for _ in range(6):
            with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
                await Cable.connect(small.cable)
        await metrics_when(small, lambda now: now["refusals_total{connections}"] == 6)
        await clients.pop().close()
        await metrics_when(small, lambda now: now["sessions"] == 5)

        async def has_connected() -> bool:
            with contextlib.suppress(aiohttp.WSServerHandshakeError):
                clients.append(await Cable.connect(small.cable))
            return len(clients) == 6

        await until(has_connected)
        for client in clients:
            await client.close()


async def clients_at_each(server: RunningServer, count: int) -> list[Cable]:
    """So many clients of one user at every worker."""
    found: dict[int, list[Cable]] = {worker: [] for worker in workers(server)}
    for _ in range(count * ATTEMPTS):
        if all(len(clients) == count for clients in found.values()):
            break
        client = await Cable.connect(server.cable, params=USER)
        clients = found[worker_of(server, client.port)]
        if len(clients) < count:
            await client.welcomed()
            clients.append(client)
        else:
            await client.close()
    return [client for clients in found.values() for client in clients]


async def test_connections_of_a_user_are_limited_for_the_whole_node() -> None:
    with running_server(*FLAGS, *KEYS, "--max_conn_per_user", "8") as small:
        clients = await clients_at_each(small, 4)
        assert len(clients) == 8
        await until_all_metrics_pages_have(small, "ropewalk_sessions 8.0")
        for _ in range(10):
            late = await Cable.connect(small.cable, params=USER)
            await late.expect("disconnect", reason="too_many_connections")
            await late.close()
        await metrics_when(small, lambda now: now["refusals_total{user_connections}"] >= 10)
        await clients.pop().close()

        async def has_connected() -> bool:
            client = await Cable.connect(small.cable, params=USER)
            frame = await client.next()
            await client.close()
            return bool(frame["type"] == "welcome")

        await until(has_connected)
        for client in clients:
            await client.close()


async def test_history_larger_than_the_write_buffer_of_the_bus_is_delivered_and_does_not_delay_other_clients() -> None:
    payload = "x" * 700_000
    with running_server("--public", "--workers", "2") as server:
        async with CABLE.client(server) as publisher, TCP.client(server) as bystander:
            ephemeral = await bystander.subscribe("live")
            for _ in range(100):
                await publisher.publish("large", payload)
            async with asyncio.timeout(SECONDS):
                offsets = await asyncio.gather(*(offsets_of(server, "large", 100) for _ in range(4)))
                await publisher.publish("live", 1)
                first = await anext(ephemeral)
            assert offsets == [list(range(1, 101))] * 4
            assert isinstance(first, Message)
        assert "error" not in server.log(), server.log()


async def offsets_of(server: RunningServer, stream: str, count: int) -> list[int]:
    async with TCP.client(server) as client:
        kept = await client.subscribe(stream, position=Position("", 0))
        events = [await anext(kept) for _ in range(count)]
        return [event.offset for event in events if isinstance(event, Message)]

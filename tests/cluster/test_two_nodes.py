"""Two nodes on one Redis or one NATS server: sessions that move, nodes that crash, and outages as clients see them.

All tests of a store share the store and its nodes. Each has streams of its own.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import NamedTuple

import aiohttp
import pytest
from redis.asyncio import Redis

from ropewalk.client import Message, Stream
from tests.cable import Cable, cable
from tests.cluster.faults import NamedAddress
from tests.cluster.scenario import members_at
from tests.scenarios.python_clients import CABLE
from tests.server import RunningServer, publish, running_server
from tests.services import NatsServer, RedisServer, nats_server, redis_server
from tests.waiting import healthy, publish_when_available, unhealthy, until

WITHIN = 60.0
KILLS = 3
BETWEEN_KILLS = 40


class TwoNodes(NamedTuple):
    """`flags`: those of every node of this cluster."""

    store: RedisServer | NatsServer
    flags: tuple[str, ...]
    here: RunningServer
    there: RunningServer


@pytest.fixture(scope="module", params=["redis", "nats"])
def nodes(request: pytest.FixtureRequest) -> Iterator[TwoNodes]:
    with ExitStack() as stack:
        store: RedisServer | NatsServer
        broker: tuple[str, ...]
        if request.param == "redis":
            store = stack.enter_context(redis_server("--appendonly", "yes", "--appendfsync", "always"))
            broker = ("--broker", "redis", "--redis_url", store.url)
        else:
            store = stack.enter_context(nats_server())
            broker = ("--broker", "nats", "--nats_servers", store.url, "--nats_shards", "2")
        flags = ("--public", *broker, "--history_limit", "1000", "--presence_ttl", "2s")
        here, there = (stack.enter_context(running_server(*flags)) for _ in range(2))
        yield TwoNodes(store, flags, here, there)


redis_only = pytest.mark.parametrize("nodes", ["redis"], indirect=True)


async def test_session_resumes_at_another_node_with_its_presence(nodes: TwoNodes) -> None:
    """The node that it left has not noticed."""
    async with cable(nodes.here) as client, cable(nodes.there) as watcher:
        await watcher.subscribe("move", presence={"id": "watcher"})
        await watcher.until("presence", lambda frame: frame["message"] == {"type": "join", "id": "watcher"})
        await client.subscribe("move", presence={"id": "bo"})
        await watcher.until("presence", lambda frame: frame["message"] == {"type": "join", "id": "bo"})
        await publish(nodes.here, "move", "1")
        await client.until("message")
        moved = await restored(nodes.there, client.sid)
        await publish(nodes.here, "move", "2")
        assert [frame["message"] for frame in await moved.ask_history("move", client.positions["move"])] == [2]
        assert (await client.closed())[1] == "Session resumed elsewhere"
        await publish(nodes.here, "move", "3")
        assert (await moved.expect("message"))["message"] == 3
        assert [frame["message"] for frame in await watcher.messages_up_to(3)] == [1, 2, 3]  # no member joined or left
        await moved.close()


async def restored(node: RunningServer, sid: str) -> Cable:
    """A connection that resumes a session, as soon as the store has it: it is written a moment after it begins."""
    async with asyncio.timeout(WITHIN):
        while True:
            client = await Cable.connect(node.cable, sid=sid)
            if (await client.until("welcome")).get("restored"):
                return client
            await client.close()


async def test_members_of_a_node_that_crashed_and_restarted_at_once_leave(nodes: TwoNodes) -> None:
    """The new process has the same name. The lease of the former one has not ended."""
    flags = (*nodes.flags, "--node_id", "crashing")
    other = NamedAddress("there", nodes.there.url)

    async def nobody_is_present() -> bool:
        return not await members_at(other, "crash")

    with running_server(*flags) as crashing:
        async with cable(crashing) as client, cable(nodes.there) as watcher:
            await watcher.subscribe("crash")
            await client.subscribe("crash", presence={"id": "bo"})
            await watcher.until("presence", lambda frame: frame["message"].get("id") == "bo")
            crashing.kill()
            with running_server(*flags, "--port", str(crashing.port)) as again:
                await until(nobody_is_present, "the member has left")
                assert await members_at(NamedAddress("again", again.url), "crash") == set()


async def test_every_message_comes_once_and_in_order_while_the_store_is_killed(nodes: TwoNodes) -> None:
    total = KILLS * BETWEEN_KILLS
    async with CABLE.client(nodes.here) as one, CABLE.client(nodes.there) as two:
        receiving = [asyncio.ensure_future(receive(await client.subscribe("kills"), total)) for client in (one, two)]
        for number in range(total):
            if number % BETWEEN_KILLS == BETWEEN_KILLS // 2:
                nodes.store.kill()
                await asyncio.to_thread(nodes.store.start)
            await publish_when_available((nodes.here, nodes.there)[number % 2], "kills", str(number), f"u{number}")
        for received in await asyncio.gather(*receiving):
            assert [message.data for message in received] == list(range(total))
            assert [message.offset for message in received] == list(range(1, total + 1))
            assert len({message.epoch for message in received}) == 1
    await healthy(nodes.here)
    await healthy(nodes.there)


async def receive(stream: Stream, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        message = await anext(stream)
        assert isinstance(message, Message), message
        found.append(message)
    return found


@redis_only
async def test_clients_miss_nothing_while_the_subscriptions_of_their_node_are_cut(nodes: TwoNodes) -> None:
    async with cable(nodes.here) as client, Redis.from_url(nodes.store.url) as redis:
        await client.subscribe("cuts")
        for number in range(100):
            await publish(nodes.there, "cuts", str(number))
            if number % 10 == 5:
                await redis.client_kill_filter(_type="pubsub")
        messages = await client.messages_up_to(100)
    assert [message["message"] for message in messages] == list(range(100))
    assert all(second["offset"] == first["offset"] + 1 for first, second in pairwise(messages))


@redis_only
async def test_clients_stay_connected_during_an_outage_of_redis(nodes: TwoNodes) -> None:
    async with cable(nodes.here) as client, aiohttp.ClientSession() as http:

        async def status(path: str, **request: object) -> int:
            method = "POST" if request else "GET"
            async with http.request(method, f"{nodes.here.url}{path}", json=request or None) as response:
                return response.status

        await client.subscribe("outage")
        await publish(nodes.here, "outage", "1")
        assert await status("/health") == 200
        nodes.store.kill()
        assert await status("/_broadcast", stream="outage", data="2") == 503
        await unhealthy(nodes.here)
        nodes.store.start()
        await publish_when_available(nodes.here, "outage", "3", "u3")
        await healthy(nodes.here)
        assert await client.messages(2) == [1, 3]

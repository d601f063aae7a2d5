"""Whole servers on one Redis: what their clients see while its connections are cut, it is down, or they move to another."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import pairwise

import aiohttp
import pytest
from redis.asyncio import Redis

from tests.cable import cable
from tests.server import publish, running_server
from tests.services import RedisServer, redis_server

WITHIN = 20.0


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN):
        while not holds():
            await asyncio.sleep(0.02)


async def cut_subscribers(redis: RedisServer) -> None:
    async with Redis.from_url(redis.url) as client:
        await client.client_kill_filter(_type="pubsub")


async def test_clients_miss_nothing_while_the_subscriptions_of_their_node_are_cut(redis: RedisServer) -> None:
    flags = ("--public", "--broker", "redis", "--redis_url", redis.url, "--history_limit", "1000")
    with running_server(*flags) as here, running_server(*flags) as there:
        async with cable(here) as client:
            await client.subscribe("s")
            for number in range(100):
                await publish(there, "s", str(number))
                if number % 10 == 5:
                    await cut_subscribers(redis)
            messages = await client.messages_up_to(100)
    assert [message["message"] for message in messages] == list(range(100))
    assert all(second["offset"] == first["offset"] + 1 for first, second in pairwise(messages))


async def test_an_outage_of_redis_costs_a_pause_and_disconnects_nobody(redis: RedisServer) -> None:
    with running_server("--public", "--broker", "redis", "--redis_url", redis.url) as server:
        async with cable(server) as client, aiohttp.ClientSession() as http:

            async def status(path: str, **request: object) -> int:
                method = "POST" if request else "GET"
                async with http.request(method, f"{server.url}{path}", json=request or None) as response:
                    return response.status

            await client.subscribe("s")
            await publish(server, "s", "1")
            assert await status("/health") == 200
            redis.kill()
            assert await status("/_broadcast", stream="s", data="2") == 503
            async with asyncio.timeout(WITHIN):
                while await status("/health") == 200:
                    await asyncio.sleep(0.05)
            redis.start()
            async with asyncio.timeout(WITHIN):
                while await status("/_broadcast", stream="s", data="3") != 201:
                    await asyncio.sleep(0.05)
                while await status("/health") != 200:
                    await asyncio.sleep(0.05)
            assert await client.messages(2) == [1, 3]


async def test_a_session_goes_on_at_another_node_with_its_presence(redis: RedisServer) -> None:
    flags = ("--public", "--broker", "redis", "--redis_url", redis.url)
    with running_server(*flags) as here, running_server(*flags) as there:
        async with cable(here) as client, cable(there) as watcher:
            await watcher.subscribe("s", presence={"id": "watcher"})
            await watcher.until("presence", lambda frame: frame["message"] == {"type": "join", "id": "watcher"})
            await client.subscribe("s", presence={"id": "bo"})
            await watcher.until("presence", lambda frame: frame["message"] == {"type": "join", "id": "bo"})
            await publish(here, "s", "1")
            await client.until("message")
            await until(lambda: "bo" in (redis.ask("HGET", "rw:{0}:s", client.sid) or ""))
            async with cable(there, welcome=False, sid=client.sid) as moved:
                await moved.welcomed(restored=True)
                assert await moved.ask_history("s", client.positions["s"]) == []
                assert (await client.closed())[1] == "Session resumed elsewhere"
                await publish(here, "s", "2")
                assert (await moved.expect("message"))["message"] == 2
                assert (await watcher.messages_up_to(2))[-1]["message"] == 2  # and nobody left or joined meanwhile

"""Two nodes on one NATS server: clients on any of them get everything once and in order, whatever happens to NATS."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from ropewalk.adapters.backends.nats import NatsBackend
from ropewalk.adapters.backends.redis import RedisBackend
from ropewalk.client import Message, Stream, connect
from ropewalk.connections.nats import NatsAddress
from ropewalk.connections.redis import RedisAddress
from ropewalk.core.rules import Rulebook
from ropewalk.model.rules import StreamRules
from tests.broadcasts import healthy, unhealthy, until
from tests.cable import Cable, Closed, cable
from tests.metrics import metrics
from tests.server import STOP_SECONDS, RunningServer, publish, running_server
from tests.services import NatsServer, free_port, nats_server, redis_server

SECONDS = 60
KILLS = 3
BETWEEN_KILLS = 40


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    with nats_server() as server:
        yield server


@pytest.fixture
def nodes(nats: NatsServer) -> Iterator[list[RunningServer]]:
    flags = ("--public", "--broker", "nats", "--nats_servers", nats.url, "--nats_shards", "2")
    with running_server(*flags, "--node_id", "one") as one, running_server(*flags, "--node_id", "two") as two:
        yield [one, two]


async def published(node: RunningServer, number: int) -> None:
    """Sent again until it is registered."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            await publish(node, "news", str(number), uid=f"u{number}")
            return
        except AssertionError:
            assert time.monotonic() < deadline, node.log()
            await asyncio.sleep(0.1)


async def listen(stream: Stream, count: int) -> list[Message]:
    found: list[Message] = []
    async with asyncio.timeout(SECONDS):
        while len(found) < count:
            message = await anext(stream)
            assert isinstance(message, Message), message
            found.append(message)
    return found


async def test_everything_comes_once_and_in_order_to_both_nodes_while_nats_is_killed(
    nodes: list[RunningServer], nats: NatsServer
) -> None:
    total = KILLS * BETWEEN_KILLS
    async with connect(nodes[0].url) as one, connect(nodes[1].url) as two:
        listening = [asyncio.ensure_future(listen(await client.subscribe("news"), total)) for client in (one, two)]
        for number in range(total):
            if number % BETWEEN_KILLS == BETWEEN_KILLS // 2:
                nats.kill()
                await asyncio.to_thread(nats.start)
            await published(nodes[number % 2], number)
        for received in await asyncio.gather(*listening):
            assert [message.data for message in received] == list(range(total))
            assert [message.offset for message in received] == list(range(1, total + 1))
            assert len({message.epoch for message in received}) == 1


async def test_a_session_goes_on_at_another_node_also_while_the_first_believes_in_it(nodes: list[RunningServer]) -> None:
    async with cable(nodes[0]) as former:
        await former.subscribe("news", history={"since": 1})
        await published(nodes[1], 1)
        await former.until("message")
        successor = await restored_at(nodes[1], former)
        successor.positions = former.positions
        await published(nodes[0], 2)
        assert [frame["message"] for frame in await successor.ask_history("news")] == [2]
        await successor.close()
        with pytest.raises(Closed, match="Session resumed elsewhere"):
            await former.until("never")


async def restored_at(node: RunningServer, former: Cable) -> Cable:
    """As soon as the store has heard of the session, which is written a moment after it begins."""
    deadline = time.monotonic() + SECONDS
    while True:
        client = await Cable.connect(node.cable, sid=former.sid)
        welcome = await client.until("welcome")
        if welcome.get("restored"):
            return client
        await client.close()
        assert time.monotonic() < deadline


# --- publications that NATS has no room for ---------------------------------------------------------------------------

ALMOST_A_MESSAGE = 1_048_500


def almost_a_message() -> str:
    """A body that is smaller than a message of NATS, and larger with what goes with it."""
    empty = {"stream": "news", "data": "", "uid": "u" * 200}
    return json.dumps({**empty, "data": "y" * (ALMOST_A_MESSAGE - len(json.dumps(empty)))})


async def test_a_publication_that_is_almost_a_message_of_nats_is_refused_and_the_next_one_is_not(
    nodes: list[RunningServer],
) -> None:
    async with aiohttp.ClientSession() as http:
        for node in nodes:
            async with http.post(f"{node.url}/api/publish", data=almost_a_message()) as response:
                assert response.status == 413, await response.text()
    for number, node in enumerate(nodes, 1):
        assert (await publish(node, "news", str(number)))["offset"] == number


async def test_an_entry_of_redisx_that_nats_has_no_room_for_is_dropped_and_the_next_one_is_registered(nats: NatsServer) -> None:
    with redis_server() as store:
        flags = ("--broker", "nats", "--nats_servers", nats.url, "--broadcast_adapter", "redisx", "--redis_url", store.url)
        with running_server("--public", *flags) as node:
            store.ask("XADD", "__anycable__", "*", "payload", almost_a_message())
            store.ask("XADD", "__anycable__", "*", "payload", json.dumps({"stream": "news", "data": "1"}))
            await until(lambda: not store.ask("XLEN", "__anycable__"), "both entries are done with")
            async with cable(node) as client:
                assert [frame["message"] for frame in await client.subscribe("news", history={"since": 1})] == [1]
            assert (await metrics(node))["publications_refused_total"] == 1


# --- a start without NATS ---------------------------------------------------------------------------------------------


async def test_a_node_that_starts_without_nats_serves_and_has_it_later(tmp_path: Path) -> None:
    nats = NatsServer(tmp_path)
    with running_server("--public", "--broker", "nats", "--nats_servers", nats.url) as node:
        await unhealthy(node, "NATS does not answer")
        await asyncio.to_thread(nats.start)
        try:
            await healthy(node)
            assert (await publish(node, "news", "1"))["offset"] == 1
        finally:
            nats.stop()
        assert node.stop() == 0


@pytest.mark.alone
async def test_a_start_waits_for_nats_about_as_long_as_for_redis() -> None:
    rules = Rulebook(StreamRules())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        seconds = []
        for backend in (
            RedisBackend(rules, RedisAddress(f"redis://127.0.0.1:{port}")),
            NatsBackend(NatsAddress((f"nats://127.0.0.1:{port}",)), "one", rules, time.time),
        ):
            begun = time.monotonic()
            await backend.start()
            seconds.append(time.monotonic() - begun)
            await backend.stop()
    redis, nats = seconds
    assert nats < 3 * redis


def test_a_node_that_is_told_to_end_while_it_waits_for_nats_ends_in_order() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        flags = ("--port", str(free_port()), "--public", "--broker", "nats", "--nats_servers", at)
        node = subprocess.Popen([sys.executable, "-m", "ropewalk", "serve", *flags], stderr=subprocess.DEVNULL)
        try:
            silent.settimeout(STOP_SECONDS)
            link, _ = silent.accept()
            node.terminate()
            assert node.wait(STOP_SECONDS) == 0
            link.close()
        finally:
            node.kill()
            node.wait()

"""Nodes on a NATS server: publications that exceed a NATS message, starts without NATS, and stops while waiting for it."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from ropewalk.adapters.backends.nats import NatsBackend
from ropewalk.adapters.backends.redis import RedisBackend
from ropewalk.connections.nats import NatsAddress
from ropewalk.connections.redis import RedisAddress
from ropewalk.core.rules import Rulebook
from ropewalk.model.rules import StreamRules
from ropewalk.ports import NodeName
from tests.cable import cable
from tests.metrics import metrics
from tests.server import STOP_SECONDS, RunningServer, publish, running_server
from tests.services import NatsServer, RedisServer, free_port, nats_server, redis_server
from tests.waiting import healthy, unhealthy, until

# --- publications that exceed a NATS message --------------------------------------------------------------------------

NEARLY_A_MESSAGE_BYTES = 1_048_500


class NatsNode(NamedTuple):
    """A node that also reads the Redis stream of `redisx`."""

    server: RunningServer
    redis: RedisServer


@pytest.fixture(scope="module")
def node() -> Iterator[NatsNode]:
    with nats_server() as nats, redis_server() as redis:
        broker = ("--broker", "nats", "--nats_servers", nats.url)
        flags = (*broker, "--broadcast_adapter", "http,redisx", "--redis_url", redis.url)
        with running_server("--public", *flags) as server:
            yield NatsNode(server, redis)


def oversized(stream: str) -> str:
    """A body that is smaller than a NATS message, and larger together with its headers."""
    empty = {"stream": stream, "data": "", "uid": "u" * 200}
    return json.dumps({**empty, "data": "y" * (NEARLY_A_MESSAGE_BYTES - len(json.dumps(empty)))})


async def test_publication_that_exceeds_a_nats_message_is_refused_and_the_next_is_registered(node: NatsNode) -> None:
    for offset in (1, 2):
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{node.server.url}/api/publish", data=oversized("large")) as response,
        ):
            assert response.status == 413, await response.text()
        assert (await publish(node.server, "large", "1"))["offset"] == offset


async def test_redisx_entry_that_exceeds_a_nats_message_is_dropped_and_the_next_is_registered(node: NatsNode) -> None:
    before = (await metrics(node.server))["publications_refused_total"]
    for payload in (oversized("entries"), json.dumps({"stream": "entries", "data": "1"})):
        node.redis.ask("XADD", "__anycable__", "*", "payload", payload)
    await until(lambda: not node.redis.ask("XLEN", "__anycable__"), "both entries are deleted")
    async with cable(node.server) as client:
        assert [frame["message"] for frame in await client.subscribe("entries", history={"since": 1})] == [1]
    assert (await metrics(node.server))["publications_refused_total"] == before + 1


# --- a start without NATS ---------------------------------------------------------------------------------------------


async def test_node_that_starts_without_nats_connects_once_nats_is_up(tmp_path: Path) -> None:
    nats = NatsServer(tmp_path)
    with running_server("--public", "--broker", "nats", "--nats_servers", nats.url) as server:
        await unhealthy(server, "NATS does not answer")
        nats.start()
        try:
            await healthy(server)
            assert (await publish(server, "news", "1"))["offset"] == 1
        finally:
            nats.stop()
        assert server.stop() == 0


@pytest.mark.alone
async def test_start_waits_for_nats_about_as_long_as_for_redis() -> None:
    rules = Rulebook(StreamRules())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        seconds = []
        for backend in (
            RedisBackend(rules, RedisAddress(f"redis://127.0.0.1:{port}"), NodeName("one", "one")),
            NatsBackend(NatsAddress((f"nats://127.0.0.1:{port}",)), NodeName("one", "one"), rules, time.time),
        ):
            started = time.monotonic()
            await backend.start()
            seconds.append(time.monotonic() - started)
            await backend.stop()
    redis, nats = seconds
    assert nats < 3 * redis


def test_node_that_is_stopped_while_it_waits_for_nats_exits_with_0() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        flags = ("--port", str(free_port()), "--public", "--broker", "nats", "--nats_servers", at)
        process = subprocess.Popen([sys.executable, "-m", "ropewalk", "serve", *flags], stderr=subprocess.DEVNULL)
        try:
            silent.settimeout(STOP_SECONDS)
            link, _ = silent.accept()
            process.terminate()
            assert process.wait(STOP_SECONDS) == 0
            link.close()
        finally:
            process.kill()
            process.wait()

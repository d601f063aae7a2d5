"""Clients that ask for a long history and do not take it cost the server little memory, and others nothing."""

import json
import resource
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from tests.cable import cable, identifier
from tests.metrics import metrics_when
from tests.process_tree import workers
from tests.server import RunningServer, running_server
from tests.tcp import client_frame, tcp

MESSAGES, PAYLOAD = 1000, "x" * 10_000
"""About 10 MB."""

READERS = 40
MIB = 1024 * 1024
FLAGS = ("--history_limit", str(MESSAGES), "--ping_interval", "0", "--ws_write_timeout", "10m")


@pytest.mark.alone
async def test_clients_that_do_not_take_their_history_do_not_fill_the_memory(engine: tuple[str, ...]) -> None:
    with running_server(*engine, *FLAGS) as server:
        await _publish(server)
        await _read_all(server)
        before = _resident(server)
        async with AsyncExitStack() as stack:
            for _ in range(READERS):
                link = await stack.enter_async_context(tcp(server, upgraded=True))
                stack.callback(link.abort)
                await link.send(client_frame(_subscribe()))
            # Each holds an answer of 25 messages and a write of seven.
            found = await metrics_when(server, lambda now: now["history_waiting_bytes"] > READERS * 25 * len(PAYLOAD))
            assert found["history_waiting_bytes"] < READERS * MIB
            assert found["sessions"] == READERS
            await _read_all(server)
            assert _resident(server) - before < 200 * MIB
        await metrics_when(server, lambda now: now["history_waiting_bytes"] == 0)


async def _publish(server: RunningServer) -> None:
    async with aiohttp.ClientSession(server.url) as http:
        for _ in range(MESSAGES // 50):
            batch = [{"stream": "long", "data": json.dumps(PAYLOAD)}] * 50
            async with http.post("/_broadcast", json=batch) as response:
                assert response.status == 201


def _subscribe() -> bytes:
    return json.dumps({"command": "subscribe", "identifier": identifier("long"), "history": {"since": 1}}).encode()


async def _read_all(server: RunningServer) -> None:
    async with cable(server) as client:
        messages = await client.subscribe("long", history={"since": 1})
        assert [message["offset"] for message in messages] == list(range(1, MESSAGES + 1))


def _resident(server: RunningServer) -> int:
    """Bytes, of all workers."""
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in workers(server)]
    return sum(pages) * resource.getpagesize()

"""What a worker has counted is counted on by its node when it ends in order."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator

import aiohttp
import pytest

from tests.metrics import metrics_when
from tests.process_tree import workers
from tests.server import RunningServer, publish, running_server
from tests.services import redis_server

WITHIN = 30.0


@pytest.fixture(params=["memory", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    with contextlib.ExitStack() as stack:
        engine: tuple[str, ...] = ("--broker", request.param)
        if request.param == "redis":
            engine += ("--redis_url", stack.enter_context(redis_server()).url)
        yield stack.enter_context(running_server("--public", "--workers", "2", *engine))


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN):
        while not holds():
            await asyncio.sleep(0.02)


async def counted(server: RunningServer) -> None:
    """Until the node has counted as many publications as its only stream has."""
    registered = (await publish(server, "s", "0"))["offset"]
    await metrics_when(server, lambda now: now["publications_total"] == registered)


async def test_workers_that_are_told_to_end_take_no_counts_with_them(server: RunningServer) -> None:
    for _ in range(20):
        await publish(server, "s", "0")
    for pid in workers(server):
        os.kill(pid, signal.SIGTERM)
    await until(lambda: server.log().count("serves again") == 2)
    await counted(server)


async def test_workers_that_are_replaced_while_clients_publish_take_no_counts_with_them(server: RunningServer) -> None:
    server.process.send_signal(signal.SIGHUP)
    while "all workers were replaced" not in server.log():
        with contextlib.suppress(aiohttp.ClientError):  # its worker may be at its end
            await publish(server, "s", "0")
    await counted(server)

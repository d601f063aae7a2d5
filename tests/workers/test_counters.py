"""A worker that ends in order leaves its counters to its node."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from tests.metrics import metrics_when
from tests.process_tree import accepted_by, store, workers
from tests.server import RunningServer, publish, running_server
from tests.services import redis_server
from tests.tcp import Tcp
from tests.waiting import until_logged

STREAM = "s"
BODY = json.dumps({"stream": STREAM, "data": "1"}).encode()
REQUEST = b"POST /_broadcast HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
LATE_CONNECTIONS = 6


@pytest.fixture(scope="module", params=["memory", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """All its publications are in one stream."""
    with contextlib.ExitStack() as stack:
        engine: tuple[str, ...] = ("--broker", request.param)
        if request.param == "redis":
            engine += ("--redis_url", stack.enter_context(redis_server()).url)
        yield stack.enter_context(running_server("--public", "--workers", "2", *engine))


async def assert_all_counted(server: RunningServer) -> None:
    registered = (await publish(server, STREAM, "0"))["offset"]
    await metrics_when(server, lambda now: now["publications_total"] == registered)


async def test_workers_ended_by_a_signal_leave_their_counts(server: RunningServer) -> None:
    for _ in range(20):
        await publish(server, STREAM, "0")
    before = server.log().count("serves again")
    for pid in workers(server):
        os.kill(pid, signal.SIGTERM)
    await until_logged(server, "serves again", before + 2)
    await assert_all_counted(server)


async def test_workers_replaced_while_clients_publish_leave_their_counts(server: RunningServer) -> None:
    server.process.send_signal(signal.SIGHUP)
    async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(force_close=True)) as http:
        while "all workers were replaced" not in server.log():
            with contextlib.suppress(aiohttp.ClientError):  # a worker that has ended closes its connections
                async with http.post("/_broadcast", json={"stream": STREAM, "data": "0"}) as response:
                    assert response.status in (201, 503), await response.text()
    await assert_all_counted(server)


async def test_requests_over_connections_accepted_before_the_stop_are_counted_or_rejected(server: RunningServer) -> None:
    """While the store is paused, a worker that stops cannot finish its last report. How far it has come when the requests
    reach it changes their responses only."""
    async with idle_connections(server) as connections:
        [stopping, *_] = connections
        before = server.log().count("serves again")
        os.kill(store(server), signal.SIGSTOP)
        try:
            shut_down = server.log().count("shutting down")
            os.kill(stopping, signal.SIGTERM)
            await until_logged(server, "shutting down", shut_down + 1)
            await asyncio.sleep(0.3)
            for link in connections[stopping]:
                await link.send(REQUEST)
            await asyncio.sleep(0.3)
        finally:
            os.kill(store(server), signal.SIGCONT)
        for link in connections[stopping]:
            await link.to_the_end()
        await until_logged(server, "serves again", before + 1)
        await assert_all_counted(server)


@contextlib.asynccontextmanager
async def idle_connections(server: RunningServer) -> AsyncIterator[dict[int, list[Tcp]]]:
    """Connections without a request, by the worker that has accepted them."""
    found: dict[int, list[Tcp]] = {}
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(LATE_CONNECTIONS):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            stack.callback(writer.transport.abort)
            worker = await accepted_by(server, writer.get_extra_info("sockname")[1])
            found.setdefault(worker, []).append(Tcp(reader, writer))
        yield found

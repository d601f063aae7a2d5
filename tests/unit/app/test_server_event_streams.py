"""An event stream ends when its client closes it, not at the next write."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ropewalk.adapters.endpoints import sse
from ropewalk.adapters.endpoints.http_requests import HttpRequest
from ropewalk.adapters.endpoints.sse import SseLink
from ropewalk.app.server import Server
from ropewalk.app.settings import load
from tests.metrics import metrics_when
from tests.server import Address
from tests.tcp import tcp

NEVER = 3600.0
MAX_CONNECTIONS = 3


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Address]:
    """Sends neither pings nor comments."""

    def without_comments(request: HttpRequest, keepalive: float) -> SseLink:
        return SseLink(request, NEVER)

    monkeypatch.setattr(sse, "SseLink", without_comments)
    flags = ("--ping_interval", str(NEVER), "--max_conn", str(MAX_CONNECTIONS), "--shutdown_spread", "0")
    settings = load(["--public", "--port", "0", "--sse", *flags], {})
    server = Server(settings, lambda: settings)
    await server.start()
    try:
        yield Address(server.addresses[0])
    finally:
        await server.stop()


async def test_closed_event_stream_frees_its_slot_without_a_write(server: Address, subtests: pytest.Subtests) -> None:
    for query in ["stream=a", "stream=a&raw=1"]:
        with subtests.test(query=query):
            for _ in range(2):
                async with asyncio.TaskGroup() as clients:
                    for _ in range(MAX_CONNECTIONS):
                        clients.create_task(open_and_close(server, query))
                await metrics_when(server, lambda now: (now["sessions"], now["connections"]) == (0, 0))


async def open_and_close(server: Address, query: str) -> None:
    async with tcp(server) as link:
        await link.send(f"GET /events?{query} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert b" 200 " in await link.head()

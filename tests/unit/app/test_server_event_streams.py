"""An event stream whose client has closed it ends at once, and not when something is written to it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from ropewalk.adapters.endpoints import sse
from ropewalk.adapters.endpoints.sse_link import SseLink
from ropewalk.app.server import Server
from ropewalk.app.settings import load
from tests.metrics import metrics_when
from tests.server import Address
from tests.tcp import tcp

NEVER = 3600.0
PLACES = 3


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Address]:
    """It writes nothing by itself."""

    def without_comments(request: web.Request, keepalive: float) -> SseLink:
        return SseLink(request, NEVER)

    monkeypatch.setattr(sse, "SseLink", without_comments)
    flags = ("--ping_interval", str(NEVER), "--max_conn", str(PLACES), "--shutdown_spread", "0")
    settings = load(["--public", "--port", "0", "--sse", *flags], {})
    server = Server(settings, lambda: settings)
    await server.start()
    try:
        yield Address(server.addresses[0])
    finally:
        await server.stop()


@pytest.mark.parametrize("query", ["stream=a", "stream=a&raw=1"])
async def test_a_closed_event_stream_leaves_its_place_without_a_write(server: Address, query: str) -> None:
    for _ in range(2):
        async with asyncio.TaskGroup() as clients:
            for _ in range(PLACES):
                clients.create_task(opened_and_closed(server, query))
        await metrics_when(server, lambda now: (now["sessions"], now["connections"]) == (0, 0))


async def opened_and_closed(server: Address, query: str) -> None:
    async with tcp(server) as link:
        await link.send(f"GET /events?{query} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert b" 200 " in await link.head()

"""A door behind a real socket, for tests."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

Client = TestClient[web.Request, web.Application]


@asynccontextmanager
async def serving(routes: Sequence[web.RouteDef]) -> AsyncIterator[Client]:
    application = web.Application()
    application.add_routes(routes)
    async with TestClient(TestServer(application)) as client:
        yield client

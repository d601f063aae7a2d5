"""An endpoint behind a real socket, for tests. A test fails if the server logs an error."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from ropewalk.adapters.endpoints.http_connection import HTTP_OPTIONS

Client = TestClient[web.Request, web.Application]


class _Failures(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(self.format(record))


@asynccontextmanager
async def serving(routes: Sequence[web.RouteDef]) -> AsyncIterator[Client]:
    application = web.Application()
    application.add_routes(routes)
    failures = _Failures()
    logging.getLogger("aiohttp.server").addHandler(failures)
    try:
        server = TestServer(application)
        await server.start_server(**HTTP_OPTIONS)
        async with TestClient(server) as client:
            yield client
    finally:
        logging.getLogger("aiohttp.server").removeHandler(failures)
    assert failures.seen == []

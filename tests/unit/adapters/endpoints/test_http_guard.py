"""Endpoints that ask for a key: who is let in, and what becomes of a body that cannot be read."""

from collections import Counter
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from ropewalk.adapters.endpoints.http_guard import KeyGuard, body_of, guarded
from ropewalk.model.errors import LateBody
from tests.unit.adapters.http_server import Client, serving


async def echo(request: web.Request) -> web.Response:
    return web.Response(body=await body_of(request, 10))


async def late(request: web.Request) -> web.Response:
    raise LateBody("the body did not come")


@pytest.fixture
def guard() -> KeyGuard:
    return KeyGuard("k3y", Counter())


@pytest.fixture
async def client(guard: KeyGuard) -> AsyncIterator[Client]:
    async with serving([web.post("/echo", guarded(guard, echo)), web.post("/late", guarded(guard, late))]) as client:
        client.session.headers["Authorization"] = "Bearer k3y"
        yield client


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "counted"),
    [
        ("/echo", b"0123456789", {}, 200, {}),
        ("/echo", b"0123456789a", {}, 413, {"body_too_large": 1}),
        ("/echo", b"no gzip", {"Content-Encoding": "gzip"}, 400, {"bad_body": 1}),
        ("/echo", b"x", {"Content-Encoding": "br"}, 415, {"bad_body": 1}),
        ("/echo", b"x", {"Authorization": "Bearer no"}, 401, {"bad_key": 1}),
        ("/late", b"x", {}, 408, {"body_timeout": 1}),
    ],
)
async def test_what_is_refused_is_answered_and_counted(
    client: Client, guard: KeyGuard, path: str, body: bytes, headers: dict[str, str], status: int, counted: dict[str, int]
) -> None:
    async with client.post(path, data=body, headers=headers) as response:
        assert response.status == status
    assert guard.refusals == counted


async def test_a_replaced_key_counts_for_connections_that_are_open_already(client: Client, guard: KeyGuard) -> None:
    assert (await client.post("/echo", data=b"x")).status == 200
    guard.key = "other"
    assert (await client.post("/echo", data=b"x")).status == 401
    assert (await client.post("/echo", data=b"x", headers={"Authorization": "Bearer other"})).status == 200

"""Unknown paths and methods are answered with JSON."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from ropewalk.adapters.endpoints.unknown_paths import last_route
from tests.unit.adapters.http_server import Client, serving


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="here")

    routes = [web.get("/api/streams", answer), web.get("/api/{name:.+}/users", answer), web.put("/api/{name:.+}/users", answer)]
    async with serving([*routes, last_route()]) as client:
        yield client


async def test_known_paths_reach_their_endpoint(client: Client, subtests: pytest.Subtests) -> None:
    for path in ["/api/streams", "/api/a/b/users"]:
        with subtests.test(path=path):
            assert await (await client.get(path)).text() == "here"


async def test_unknown_path_is_answered_with_404(client: Client, subtests: pytest.Subtests) -> None:
    for path in ["/", "/api", "/api/", "/api/stream", "/api/streams/", "/a%0Ab"]:
        for method in ["GET", "POST", "OPTIONS"]:
            with subtests.test(path=path, method=method):
                async with client.request(method, path, data=b"x") as response:
                    assert (response.status, response.content_type) == (404, "application/json")
                    assert await response.json() == {"error": "no such path"}
                    assert "Allow" not in response.headers


async def test_unknown_method_is_answered_with_405_and_the_allowed_ones(client: Client, subtests: pytest.Subtests) -> None:
    for path, allow in [("/api/streams", "GET, HEAD"), ("/api/a/b/users", "GET, HEAD, PUT")]:
        with subtests.test(path=path, allow=allow):
            async with client.post(path, data=b"x") as response:
                assert (response.status, response.headers["Allow"]) == (405, allow)
                assert await response.json() == {"error": f"the path knows {allow}, not POST"}

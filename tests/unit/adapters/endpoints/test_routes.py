"""Routes find the handler of a request. Unknown paths and methods are answered with JSON."""

from collections.abc import AsyncIterator

import pytest

from ropewalk.adapters.endpoints.http_requests import HttpRequest
from ropewalk.adapters.endpoints.http_responses import HttpResponse
from ropewalk.adapters.endpoints.routes import HttpRoute
from tests.unit.adapters.http_server import Client, serving


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async def answer(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, b"here")

    rows = (("GET", "/api/streams"), ("GET", "/api/{name*}/users"), ("PUT", "/api/{name*}/users"))
    async with serving([HttpRoute(method, path, answer) for method, path in rows]) as client:
        yield client


async def test_known_paths_reach_their_endpoint(client: Client, subtests: pytest.Subtests) -> None:
    for path in ["/api/streams", "/api/a/b/users"]:
        with subtests.test(path=path):
            assert await (await client.get(path)).text() == "here"


async def test_unknown_path_is_answered_with_404(client: Client, subtests: pytest.Subtests) -> None:
    for path in ["/", "/api", "/api/", "/api/stream", "/api/streams/", "/api%2Fstreams", "/a%0Ab"]:
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

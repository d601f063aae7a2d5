"""Workers forward requests to the store process over a real Unix socket."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from ropewalk.adapters.endpoints.http_requests import HttpRequest
from ropewalk.adapters.endpoints.http_responses import HttpResponse, ResponseStream, encode_fields, refusal
from ropewalk.adapters.endpoints.routes import ANY, HttpRoute
from ropewalk.adapters.endpoints.store_proxy import StoreProxy
from tests.unit.adapters.http_server import Client, serving, serving_on_unix_socket

PIECES = 64
PIECE = b"x" * (64 << 10)


async def echo(request: HttpRequest) -> HttpResponse:
    """Returns the request as it arrived."""
    seen = {name: request.headers.get(name.lower()) for name in ("Authorization", "Content-Encoding", "X-Own", "Expect")}
    body = b"".join([chunk async for chunk in request.body.chunks()])
    return HttpResponse(
        207, body, encode_fields({**{f"Seen-{name}": seen[name] for name in seen}, "Seen-Path": request.target})
    )


async def stream(request: HttpRequest) -> ResponseStream:
    """More bytes than any buffer holds."""
    response = ResponseStream(request, 200, {"Content-Type": "application/x-rows"})
    for _ in range(PIECES):
        await response.write(PIECE)
    await response.end()
    return response


async def cut_off(request: HttpRequest) -> ResponseStream:
    response = ResponseStream(request, 200, {})
    await response.write(PIECE)
    return response


async def refuse(request: HttpRequest) -> HttpResponse:
    """Responds before the body has arrived."""
    return refusal(413, "too large", close=True)


STORE = [
    HttpRoute(ANY, "/journal", echo),
    HttpRoute(ANY, "/journal/echo/{rest*}", echo),
    HttpRoute("GET", "/journal/stream", stream),
    HttpRoute("GET", "/journal/cut", cut_off),
    HttpRoute("POST", "/journal/refuse", refuse),
]


def store(path: Path) -> AbstractAsyncContextManager[None]:
    return serving_on_unix_socket(path, STORE)


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[StoreProxy]:
    proxy = StoreProxy(str(tmp_path / "store.sock"))
    yield proxy
    await proxy.stop()


@pytest.fixture
async def client(proxy: StoreProxy, tmp_path: Path) -> AsyncIterator[Client]:
    async with store(tmp_path / "store.sock"), serving(proxy.routes("/journal")) as client:
        yield client


async def test_method_path_query_and_headers_are_forwarded(client: Client, subtests: pytest.Subtests) -> None:
    for method in ["GET", "POST", "PUT", "DELETE", "PATCH"]:
        with subtests.test(method=method):
            headers = {"Authorization": "Bearer key", "X-Own": "1"}
            async with client.request(method, "/journal/echo/a%2Fb?from=1&to=%20", headers=headers) as response:
                assert response.status == 207
                assert response.headers["Seen-Path"] == "/journal/echo/a%2Fb?from=1&to=%20"
                assert (response.headers["Seen-Authorization"], response.headers["Seen-X-Own"]) == ("Bearer key", "1")


async def test_hop_by_hop_headers_are_not_forwarded(client: Client) -> None:
    async with client.post("/journal", data=b"1", headers={"Connection": "X-Own", "X-Own": "1"}, expect100=True) as response:
        assert (response.status, await response.read()) == (207, b"1")
        assert (response.headers["Seen-X-Own"], response.headers["Seen-Expect"]) == ("", "")


async def test_body_is_forwarded_unchanged(client: Client) -> None:
    packed = gzip.compress(b"rows" * 1000)
    async with client.post("/journal", data=packed, headers={"Content-Encoding": "gzip"}) as response:
        assert await response.read() == packed
        assert response.headers["Seen-Content-Encoding"] == "gzip"


async def test_large_chunked_body_is_forwarded(client: Client) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(PIECES):
            yield PIECE

    async with client.post("/journal", data=pieces()) as response:
        assert await response.read() == PIECE * PIECES


async def test_large_response_is_streamed(client: Client) -> None:
    async with client.get("/journal/stream") as response:
        assert response.headers["Content-Type"] == "application/x-rows"
        assert await response.read() == PIECE * PIECES


async def test_truncated_response_is_detected_by_the_client(client: Client) -> None:
    async with client.get("/journal/cut") as response:
        assert response.status == 200
        with pytest.raises(Exception, match="payload"):
            await response.read()


async def test_refusal_before_the_end_of_the_body_is_returned(client: Client) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield PIECE
        await asyncio.Event().wait()

    async with client.post("/journal/refuse", data=endless()) as response:
        assert (response.status, await response.json()) == (413, {"error": "too large"})


async def test_head_has_headers_and_no_body(client: Client) -> None:
    async with client.head("/journal") as response:
        assert (response.status, await response.read()) == (207, b"")
    async with client.get("/journal") as response:  # on the same connection
        assert response.status == 207


async def test_unavailable_store_is_answered_with_503_until_it_is_back(proxy: StoreProxy, tmp_path: Path) -> None:
    async with serving(proxy.routes("/journal")) as client:
        for _ in range(2):
            async with client.post("/journal", data=PIECE * 16) as response:
                assert (response.status, response.headers["Retry-After"]) == (503, "1")
                assert await response.json() == {"error": "the store process does not answer"}
            async with store(tmp_path / "store.sock"), client.post("/journal", data=b"1") as response:
                assert await response.read() == b"1"

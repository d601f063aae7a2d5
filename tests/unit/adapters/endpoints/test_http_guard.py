"""Endpoints with a key: authentication, and request bodies with their limits and encodings."""

import asyncio
import gzip
import random
import threading
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable

import pytest

from ropewalk.adapters.endpoints import http_guard
from ropewalk.adapters.endpoints.http_guard import INLINE_BYTES, INLINE_INPUT, Budget, KeyGuard, gather, guarded, read_body
from ropewalk.adapters.endpoints.http_requests import HttpRequest, RequestHeaders
from ropewalk.adapters.endpoints.http_responses import HttpResponse
from ropewalk.adapters.endpoints.routes import HttpRoute
from ropewalk.model.errors import BadBody, LateBody, TooLarge, Unavailable, UnsupportedEncoding
from tests.unit.adapters.http_server import Client, serving


async def echo(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, await read_body(request, 10))


async def late(request: HttpRequest) -> HttpResponse:
    raise LateBody("the body did not come")


@pytest.fixture
def guard() -> KeyGuard:
    return KeyGuard("k3y", Counter())


@pytest.fixture
async def client(guard: KeyGuard) -> AsyncIterator[Client]:
    async with serving(
        [HttpRoute("POST", "/echo", guarded(guard, echo)), HttpRoute("POST", "/late", guarded(guard, late))]
    ) as client:
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
async def test_refused_requests_are_counted(
    client: Client, guard: KeyGuard, path: str, body: bytes, headers: dict[str, str], status: int, counted: dict[str, int]
) -> None:
    async with client.post(path, data=body, headers=headers) as response:
        assert response.status == status
    assert guard.refusals == counted


async def test_replaced_key_applies_to_open_connections(client: Client, guard: KeyGuard) -> None:
    assert (await client.post("/echo", data=b"x")).status == 200
    guard.key = "other"
    assert (await client.post("/echo", data=b"x")).status == 401
    assert (await client.post("/echo", data=b"x", headers={"Authorization": "Bearer other"})).status == 200


# --- Bodies ----------------------------------------------------------------------------------------------------------

NO_HEADERS = RequestHeaders([])
TEXT = b'{"stream":"chat"}' * 100


async def sent(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def read(data: bytes, encoding: str = "", limit: int = 10_000) -> bytes:
    return await gather(
        sent([data[:7], data[7:]]), RequestHeaders([(b"Content-Encoding", encoding.encode())] if encoding else []), limit
    )


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


async def test_body_is_decompressed_by_its_encoding(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, bytes]] = [
        ("", TEXT),
        ("identity", TEXT),
        ("gzip", gzip.compress(TEXT, mtime=0)),
        ("GZip", gzip.compress(TEXT, mtime=0)),
        ("x-gzip", gzip.compress(TEXT, mtime=0)),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", raw_deflate(TEXT)),
    ]
    for encoding, data in rows:
        with subtests.test(encoding=encoding, data=data):
            assert await read(data, encoding) == TEXT


async def test_compressed_body_may_have_any_size_after_inflation(subtests: pytest.Subtests) -> None:
    for size in [0, 1, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 3 * INLINE_BYTES]:
        with subtests.test(size=size):
            assert await read(gzip.compress(b"x" * size), "gzip", 3 * INLINE_BYTES) == b"x" * size


async def test_compressed_body_may_have_any_sent_size(subtests: pytest.Subtests) -> None:
    for size in [INLINE_INPUT - 1, INLINE_INPUT, INLINE_INPUT + 1, 3 * INLINE_INPUT]:
        with subtests.test(size=size):
            text = random.Random(size).randbytes(size)
            packed = gzip.compress(text, 0)
            assert await read(packed, "gzip", 2 * size) == text
            with pytest.raises(BadBody):
                await read(packed[:-1], "gzip", 2 * size)
            with pytest.raises(BadBody):
                await read(gzip.compress(b"x") + bytes(size), "gzip", 2 * size + 100)


async def test_inflated_size_is_limited(subtests: pytest.Subtests) -> None:
    for limit in [100, INLINE_BYTES, 5 * INLINE_BYTES]:
        with subtests.test(limit=limit):
            assert await read(gzip.compress(b"x" * limit), "gzip", limit) == b"x" * limit
            with pytest.raises(TooLarge):
                await read(gzip.compress(b"x" * (limit + 1)), "gzip", limit)
            with pytest.raises(TooLarge):
                await read(gzip.compress(b"x" * 20 * limit), "gzip", limit)


EMPTY_BLOCK = b"\0\0\0\xff\xff"  # RFC 1951 section 3.2.4
LARGE = {
    "what becomes much": (gzip.compress(b"x" * 1_000_000), "gzip", 1_000_000),
    "what becomes nothing": (EMPTY_BLOCK * 20_000 + raw_deflate(b""), "deflate", 0),
}


@pytest.mark.parametrize("case", LARGE)
async def test_large_body_is_inflated_in_a_thread(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, encoding, size = LARGE[case]
    threads: list[int] = []

    class Watched:
        def __init__(self, wbits: int) -> None:
            self._inflater = zlib.decompressobj(wbits)

        def decompress(self, data: bytes, most: int) -> bytes:
            inflated = self._inflater.decompress(data, most)
            if len(inflated) > INLINE_BYTES or len(data) > INLINE_INPUT:
                threads.append(threading.get_ident())
            return inflated

        def __getattr__(self, name: str) -> object:
            return getattr(self._inflater, name)

    class Zlib:
        error = zlib.error
        DEFLATED = zlib.DEFLATED
        decompressobj = Watched

    monkeypatch.setattr(http_guard, "zlib", Zlib)
    assert len(await read(data, encoding, 1_000_000)) == size
    assert threads
    assert threading.get_ident() not in threads


async def test_body_that_does_not_match_its_encoding_is_refused(subtests: pytest.Subtests) -> None:
    for data in [b"", b"not gzip", gzip.compress(TEXT, mtime=0)[:-3], gzip.compress(TEXT, mtime=0) + b"more"]:
        with subtests.test(data=data), pytest.raises(BadBody):
            await read(data, "gzip")


async def test_unknown_encoding_is_refused(subtests: pytest.Subtests) -> None:
    for encoding in ["br", "zstd", "gzip, gzip", "nonsense"]:
        with subtests.test(encoding=encoding), pytest.raises(UnsupportedEncoding):
            await read(TEXT, encoding)


@pytest.mark.parametrize("announced", ["10001", "9" * 5000])
async def test_content_length_beyond_the_limit_is_refused_unread(announced: str) -> None:
    async def untouched() -> AsyncIterator[bytes]:
        raise AssertionError("was read")
        yield b""

    with pytest.raises(TooLarge):
        await gather(untouched(), RequestHeaders([(b"content-length", announced.encode())]), 10_000)


async def test_incomplete_body_times_out() -> None:
    async def trickle() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    with pytest.raises(LateBody):
        await gather(trickle(), NO_HEADERS, 100, seconds=0.01)


async def test_incomplete_bodies_are_bounded_by_a_shared_budget() -> None:
    budget = Budget(150)
    halfway, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"x" * 100
        halfway.set()
        await go_on.wait()
        yield b"x" * 50

    first = asyncio.create_task(gather(slow(), NO_HEADERS, 1000, budget))
    await halfway.wait()
    with pytest.raises(Unavailable):
        await gather(sent([b"x" * 30, b"x" * 30]), NO_HEADERS, 1000, budget)
    go_on.set()
    assert len(await first) == 150
    assert len(await gather(sent([b"x" * 150]), NO_HEADERS, 1000, budget)) == 150

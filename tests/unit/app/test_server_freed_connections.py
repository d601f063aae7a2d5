"""Objects of an ended connection are freed at once, without the garbage collector.

The collector seldom examines old objects, so reference cycles would hold memory for long.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ropewalk.adapters.endpoints.http_connection import HttpConnection
from ropewalk.adapters.endpoints.sse import SseLink
from ropewalk.adapters.endpoints.websocket import WebSocketConnection
from ropewalk.app.server import Server
from ropewalk.app.settings import load
from ropewalk.engine.session import Session
from tests.server import Address
from tests.tcp import Tcp, client_frame, tcp, upgrade_request

KINDS = (HttpConnection, SseLink, WebSocketConnection, Session)
DEADLINE_SECONDS = 60.0
BODY = b'{"stream":"a","data":"1"}'
PUBLISH = b"POST /_broadcast HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = b"POST /_broadcast HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


@pytest.fixture
async def server() -> AsyncIterator[Address]:
    settings = load(["--public", "--port", "0", "--sse", "--shutdown_spread", "0"], {})
    server = Server(settings, lambda: settings)
    await server.start()
    try:
        yield Address(server.addresses[0])
    finally:
        await server.stop()


async def publish(link: Tcp) -> None:
    await link.send(PUBLISH)
    assert (await link.response())[0] == 201
    await link.send(CHUNKED)
    assert (await link.response())[0] == 201


async def open_events(link: Tcp) -> None:
    await link.send(b"GET /events?stream=a HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b"200" in await link.head()


async def open_websocket(link: Tcp) -> None:
    await link.send(upgrade_request() + client_frame(b'{"command":"ping"}'))
    await link.frame_with(b"pong")


def alive_objects() -> list[str]:
    return [type(each).__name__ for each in gc.get_objects() if isinstance(each, KINDS)]


@pytest.mark.parametrize("use", [publish, open_events, open_websocket])
async def test_ended_connection_is_freed_without_the_garbage_collector(
    server: Address, use: Callable[[Tcp], Awaitable[None]]
) -> None:
    gc.collect()
    gc.disable()
    try:
        async with tcp(server) as link:
            await use(link)
            assert alive_objects()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while alive_objects():
                await asyncio.sleep(0.01)
    finally:
        gc.enable()

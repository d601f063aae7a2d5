"""What an ended connection leaves behind is freed at once, and does not wait for the garbage collector.

The collector looks at what has lived long only seldom: whatever waits for it is memory that nobody has.
"""

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from ropewalk.adapters.endpoints.http_connection import HttpConnection
from ropewalk.adapters.endpoints.sse_link import SseLink
from ropewalk.adapters.endpoints.websocket import WebSocketConnection
from ropewalk.app.server import Server
from ropewalk.app.settings import load
from ropewalk.engine.session import Session
from tests.server import Address
from tests.tcp import Tcp, client_frame, tcp, upgrade_request

KINDS = (HttpConnection, SseLink, WebSocketConnection, Session)
TIMEOUT = 15.0
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


async def publishing(link: Tcp) -> None:
    await link.send(PUBLISH)
    assert (await link.response())[0] == 201
    await link.send(CHUNKED)
    assert (await link.response())[0] == 201


async def events(link: Tcp) -> None:
    await link.send(b"GET /events?stream=a HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b"200" in await link.head()


async def websocket(link: Tcp) -> None:
    await link.send(upgrade_request() + client_frame(b'{"command":"ping"}'))
    await link.frame_with(b"pong")


def alive() -> list[str]:
    return [type(each).__name__ for each in gc.get_objects() if isinstance(each, KINDS)]


@pytest.mark.parametrize("use", [publishing, events, websocket])
async def test_an_ended_connection_is_freed_without_the_garbage_collector(server: Address, use: object) -> None:
    assert callable(use)
    gc.collect()
    gc.disable()
    try:
        async with tcp(server) as link:
            await use(link)
            assert alive()
        async with asyncio.timeout(TIMEOUT):
            while alive():
                await asyncio.sleep(0.01)
    finally:
        gc.enable()

"""HTTP connections parse large reads a piece at a time, in turn with all other connections."""

import asyncio
from collections import Counter
from itertools import pairwise

from aiohttp import StreamReader, web

from ropewalk.adapters.endpoints.admission import ConnectionLimits
from ropewalk.adapters.endpoints.shared_port import SharedPort
from ropewalk.adapters.endpoints.websocket import WebSocketEndpoint
from ropewalk.protocol.proxies import TrustedProxies
from tests.unit.adapters.endpoints.wire import Wire

PIECE_CHUNKS = 4096 // len(b"1\r\n \r\n")


HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


def make_port(bodies: list[StreamReader]) -> SharedPort:
    async def swallow(request: web.BaseRequest) -> web.StreamResponse:
        bodies.append(request.content)
        async for _ in request.content.iter_any():
            pass
        return web.Response()

    proxies = TrustedProxies()
    sockets = WebSocketEndpoint(lambda *_: None, (), lambda _: True, "jid", 1, False, False, proxies)  # type: ignore[arg-type]
    shared_port = SharedPort(sockets, ConnectionLimits(), Counter(), 60.0, proxies)
    shared_port.http.server = web.Server(swallow)
    return shared_port


async def test_small_chunks_of_many_connections_are_parsed_in_turns() -> None:
    bodies: list[StreamReader] = []
    shared_port, wires = make_port(bodies), [Wire() for _ in range(12)]
    for wire in wires:
        detector = shared_port.detector()
        detector.connection_made(wire)
        detector.data_received(HEAD)
    while len(bodies) < len(wires):
        await asyncio.sleep(0)
    for wire in wires:
        assert isinstance(wire.protocol, asyncio.Protocol)
        wire.protocol.data_received(b"1\r\n \r\n" * 1000)
        assert not wire.reads
    parsed = [[body.total_bytes for body in bodies]]
    while sum(parsed[-1]) < 12_000:
        await asyncio.sleep(0)
        parsed.append([body.total_bytes for body in bodies])
    for before, after in pairwise(parsed):
        assert sum(after) - sum(before) <= PIECE_CHUNKS + 1
    first_pieces = next(each for each in parsed if all(each))
    assert max(first_pieces) <= PIECE_CHUNKS + 1  # no second turn before all had their first
    for wire in wires:
        assert isinstance(wire.protocol, asyncio.Protocol)
        wire.protocol.data_received(b"0\r\n\r\n")
    await shared_port.http.server.shutdown()


async def test_chunks_buffered_by_the_parser_are_parsed_once_the_body_is_read() -> None:
    """More chunks than aiohttp buffers, then some more: the whole body arrives, and reading resumes."""
    bodies: list[StreamReader] = []
    gate = asyncio.Event()

    async def late(request: web.BaseRequest) -> web.StreamResponse:
        bodies.append(request.content)
        await gate.wait()
        async for _ in request.content.iter_any():
            pass
        return web.Response()

    shared_port, wire = make_port([]), Wire()
    shared_port.http.server = web.Server(late)
    detector = shared_port.detector()
    detector.connection_made(wire)
    detector.data_received(HEAD)
    assert isinstance(wire.protocol, asyncio.Protocol)
    chunks = b"10\r\n" + b" " * 16 + b"\r\n"
    for _ in range(40):
        wire.protocol.data_received(chunks * 200)
        await asyncio.sleep(0)
    assert not wire.reads
    held = bodies[0].total_bytes
    gate.set()
    while bodies[0].total_bytes < 40 * 200 * 16:
        await asyncio.sleep(0)
    assert held < bodies[0].total_bytes
    while not wire.reads:
        await asyncio.sleep(0)
    wire.protocol.data_received(b"0\r\n\r\n")
    while not bodies[0].is_eof():
        await asyncio.sleep(0)
    await shared_port.http.server.shutdown()

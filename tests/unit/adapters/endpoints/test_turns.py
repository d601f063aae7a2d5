"""Turns: what many connections make us do at once is done a piece at a time, and everybody else is served in between."""

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

from aiohttp import StreamReader, web

from ropewalk.adapters.endpoints.admission import ConnectionLimits
from ropewalk.adapters.endpoints.read_pacing import FRAMES_A_SECOND, FRAMES_AT_ONCE, ReadPacing
from ropewalk.adapters.endpoints.shared_port import SharedPort
from ropewalk.adapters.endpoints.turns import A_TURN, BURST_SECONDS, LITTLE, LoopTurns
from ropewalk.adapters.endpoints.websocket import WebSocketEndpoint
from ropewalk.protocol.proxies import TrustedProxies

PIECE_CHUNKS = 4096 // len(b"1\r\n \r\n")
HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport without a network: whether it is read is what a test asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.read = True
        self.protocol: asyncio.BaseProtocol | None = None

    def pause_reading(self) -> None:
        self.read = False

    def resume_reading(self) -> None:
        self.read = True

    def is_closing(self) -> bool:
        return False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def write(self, data: Any) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class Work:
    """Something that waits for its turns, so many of them."""

    def __init__(self, name: str, turns: LoopTurns, done: list[str], times: int = 1, seconds: float = 0.0) -> None:
        self._name, self._turns, self._done, self._times, self._seconds = name, turns, done, times, seconds
        turns.wait(self)

    def take_turn(self) -> float:
        self._done.append(self._name)
        self._times -= 1
        if self._times:
            self._turns.wait(self)
        return self._seconds


async def test_one_has_its_turn_at_a_time_and_who_has_more_to_do_waits_behind_the_others() -> None:
    turns, done = LoopTurns(), list[str]()
    Work("a", turns, done, times=3)
    Work("b", turns, done)
    Work("c", turns, done, times=2)
    seen = []
    while len(done) < 6:
        await asyncio.sleep(0)
        seen.append(len(done))
    assert done == ["a", "b", "c", "a", "c", "a"]
    assert seen == [1, 2, 3, 4, 5, 6]


async def test_a_turn_that_fails_does_not_hold_up_the_next_one() -> None:
    class Failing:
        def take_turn(self) -> float:
            raise ValueError

    turns, done = LoopTurns(), list[str]()
    heard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    turns.wait(Failing())
    Work("b", turns, done)
    for _ in range(3):
        await asyncio.sleep(0)
    assert done == ["b"]
    assert len(heard) == 1


async def test_who_asks_for_time_makes_all_the_others_wait() -> None:
    turns, done = LoopTurns(), list[str]()
    Work("a", turns, done, seconds=BURST_SECONDS / 2)
    Work("b", turns, done, seconds=60.0)
    Work("c", turns, done)
    for _ in range(100):
        await asyncio.sleep(0)
    assert done == ["a", "b"]


async def test_those_who_work_without_a_turn_share_the_time_of_one_until_everybody_was_served() -> None:
    turns = LoopTurns()
    turns.worked(A_TURN / 4)
    turns.worked(A_TURN / 4)
    assert turns.left == A_TURN / 2
    turns.worked(A_TURN)
    assert turns.left < 0
    await asyncio.sleep(0)
    assert turns.left == A_TURN
    turns.worked(A_TURN)
    assert turns.left == 0


async def test_who_works_a_little_takes_no_time_from_anybody() -> None:
    turns = LoopTurns()
    for _ in range(1000):
        turns.worked(LITTLE)
    assert turns.left == A_TURN


# --- HTTP -------------------------------------------------------------------------------------------------------------


def door_to(bodies: list[StreamReader]) -> SharedPort:
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


async def test_tiny_chunks_of_many_connections_are_parsed_a_piece_at_a_time_in_turn() -> None:
    bodies: list[StreamReader] = []
    shared_port, wires = door_to(bodies), [Wire() for _ in range(12)]
    for wire in wires:
        detector = shared_port.detector()
        detector.connection_made(wire)
        detector.data_received(HEAD)
    while len(bodies) < len(wires):
        await asyncio.sleep(0)
    for wire in wires:
        assert isinstance(wire.protocol, asyncio.Protocol)
        wire.protocol.data_received(b"1\r\n \r\n" * 1000)
        assert not wire.read
    parsed = [[body.total_bytes for body in bodies]]
    while sum(parsed[-1]) < 12_000:
        await asyncio.sleep(0)
        parsed.append([body.total_bytes for body in bodies])
    for before, after in pairwise(parsed):
        assert sum(after) - sum(before) <= PIECE_CHUNKS + 1
    first_pieces = next(each for each in parsed if all(each))
    assert max(first_pieces) <= PIECE_CHUNKS + 1  # nobody had a second turn before everybody had the first
    for wire in wires:
        assert isinstance(wire.protocol, asyncio.Protocol)
        wire.protocol.data_received(b"0\r\n\r\n")
    await shared_port.http.server.shutdown()


async def test_what_the_parser_kept_back_while_nobody_read_is_parsed_once_somebody_does() -> None:
    """More chunks than aiohttp buffers, then some more: all of the body arrives, and the wire is read again."""
    bodies: list[StreamReader] = []
    gate = asyncio.Event()

    async def late(request: web.BaseRequest) -> web.StreamResponse:
        bodies.append(request.content)
        await gate.wait()
        async for _ in request.content.iter_any():
            pass
        return web.Response()

    shared_port, wire = door_to([]), Wire()
    shared_port.http.server = web.Server(late)
    detector = shared_port.detector()
    detector.connection_made(wire)
    detector.data_received(HEAD)
    assert isinstance(wire.protocol, asyncio.Protocol)
    chunks = b"10\r\n" + b" " * 16 + b"\r\n"
    for _ in range(40):
        wire.protocol.data_received(chunks * 200)
        await asyncio.sleep(0)
    assert not wire.read
    held = bodies[0].total_bytes
    gate.set()
    while bodies[0].total_bytes < 40 * 200 * 16:
        await asyncio.sleep(0)
    assert held < bodies[0].total_bytes
    while not wire.read:
        await asyncio.sleep(0)
    wire.protocol.data_received(b"0\r\n\r\n")
    while not bodies[0].is_eof():
        await asyncio.sleep(0)
    await shared_port.http.server.shutdown()


# --- WebSocket --------------------------------------------------------------------------------------------------------


async def test_connections_that_send_many_control_frames_are_read_again_one_after_another() -> None:
    turns, wires = LoopTurns(), [Wire() for _ in range(5)]
    readings = [ReadPacing(wire, turns) for wire in wires]
    for reading in readings:
        for _ in range(FRAMES_AT_ONCE + 10):
            reading.count()
    assert not any(wire.read for wire in wires)
    seen = [0]
    while seen[-1] < len(wires):
        await asyncio.sleep(0)
        seen.append(sum(wire.read for wire in wires))
    assert max(after - before for before, after in pairwise(seen)) == 1


async def test_a_connection_that_is_past_its_rate_rests() -> None:
    wire = Wire()
    reading = ReadPacing(wire, LoopTurns())
    for _ in range(60 * FRAMES_A_SECOND):
        reading.count()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not wire.read


async def test_a_connection_whose_session_holds_it_is_not_read_after_its_turn() -> None:
    wire = Wire()
    reading = ReadPacing(wire, LoopTurns())
    for _ in range(FRAMES_AT_ONCE):
        reading.count()
    reading.hold(True)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not wire.read
    reading.hold(False)
    assert wire.read

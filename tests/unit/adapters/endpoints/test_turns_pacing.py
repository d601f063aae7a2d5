"""WebSocket connections that send many control frames are paused and read again in turn."""

import asyncio
from itertools import pairwise

from ropewalk.adapters.endpoints.turns import FRAMES_A_SECOND, FRAMES_AT_ONCE, LoopTurns, ReadPacing
from tests.unit.adapters.endpoints.wire import Wire


async def test_paused_connections_are_read_again_one_at_a_time() -> None:
    turns, wires = LoopTurns(), [Wire() for _ in range(5)]
    readings = [ReadPacing(wire, turns) for wire in wires]
    for reading in readings:
        for _ in range(FRAMES_AT_ONCE + 10):
            reading.count()
    assert not any(wire.reads for wire in wires)
    seen = [0]
    while seen[-1] < len(wires):
        await asyncio.sleep(0)
        seen.append(sum(wire.reads for wire in wires))
    assert max(after - before for before, after in pairwise(seen)) == 1


async def test_connection_beyond_its_rate_stays_paused() -> None:
    wire = Wire()
    reading = ReadPacing(wire, LoopTurns())
    for _ in range(60 * FRAMES_A_SECOND):
        reading.count()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not wire.reads


async def test_connection_held_by_its_session_is_not_read_after_its_turn() -> None:
    wire = Wire()
    reading = ReadPacing(wire, LoopTurns())
    for _ in range(FRAMES_AT_ONCE):
        reading.count()
    reading.hold(True)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not wire.reads
    reading.hold(False)
    assert wire.reads

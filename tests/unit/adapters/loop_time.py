"""Tests under the fixture `loop_clock`, which stops the time of the event loop."""

import asyncio

from ropewalk.testing.clock import ManualClock


async def pass_time(clock: ManualClock, seconds: float) -> None:
    clock.advance(seconds)
    for _ in range(3):
        await asyncio.sleep(0)

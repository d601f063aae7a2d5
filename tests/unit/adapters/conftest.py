import asyncio

import pytest

from ropewalk.testing.clock import ManualClock


@pytest.fixture
async def loop_clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock of the event loop. It stands still, so timeouts expire only when the test advances it."""
    loop = asyncio.get_running_loop()
    clock = ManualClock(loop.time())
    monkeypatch.setattr(loop, "time", clock)
    return clock

"""Waits for a condition. The deadline only matters where the condition never holds."""

import asyncio
import inspect
import time
from collections.abc import Callable

from tests.server import RunningServer

DEADLINE_SECONDS = 90.0


async def until(holds: Callable[[], object], explain: Callable[[], object] = lambda: "condition not met") -> None:
    """`holds` may be a coroutine function. `explain` returns what to show when the deadline has passed."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        result = holds()
        if await result if inspect.isawaitable(result) else result:
            return
        assert time.monotonic() < deadline, explain()
        await asyncio.sleep(0.02)


async def until_logged(server: RunningServer, line: str, times: int = 1) -> None:
    await until(lambda: server.log().count(line) >= times, lambda: f"{line!r} is not logged {times} times:\n{server.log()}")

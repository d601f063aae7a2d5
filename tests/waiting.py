"""Waiting for conditions. The deadline matters only where a test fails, so it is the same for all."""

import asyncio
import inspect
import time
from collections.abc import Callable

from tests.server import RunningServer

SECONDS = 90.0
GROWING_SECONDS = (2, 10, 50)
"""Timeouts of a server within which a test must act. A test uses the first one that it measurably was fast enough for: what it
asserts then does not depend on the speed of the machine."""


async def until(holds: Callable[[], object], what: str | Callable[[], object] = "the condition") -> None:
    """Poll until `holds` returns something true.

    Args:
        holds: a function or a coroutine function.
        what: names the condition in the failure, or returns the text to show.
    """
    deadline = time.monotonic() + SECONDS
    while True:
        result = holds()
        if await result if inspect.isawaitable(result) else result:
            return
        assert time.monotonic() < deadline, f"not within {SECONDS:.0f} s: {what() if callable(what) else what}"
        await asyncio.sleep(0.02)


async def until_logged(server: RunningServer, line: str, times: int = 1) -> None:
    await until(lambda: server.log().count(line) >= times, lambda: f"{line!r} is logged {times} times\n{server.log()}")

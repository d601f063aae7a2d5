"""Waiting for conditions. The deadline matters only where a test fails, so it is the same for all."""

import asyncio
import time
from collections.abc import Callable

SECONDS = 60.0


async def until(holds: Callable[[], object], what: str = "the condition") -> None:
    """Poll until `holds` returns something true.

    Args:
        what: names the condition in the failure.
    """
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {SECONDS:.0f} s"
        await asyncio.sleep(0.02)

"""Waiting for conditions. The deadline matters only where a test fails, so it is the same for all."""

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable
from typing import Any

import aiohttp

from tests.server import Address, RunningServer, publish

SECONDS = 90.0
GROWING_SECONDS = (2, 10, 50)
"""Timeouts of a server within which a test must act. A test uses the first one that it measurably was fast enough for: what it
asserts then does not depend on the speed of the machine."""


async def settle() -> None:
    """Let all tasks run until they wait for something else than the event loop."""
    for _ in range(20):
        await asyncio.sleep(0)


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


def wait_until(
    holds: Callable[[], object], what: str | Callable[[], object] = "the condition", seconds: float = SECONDS
) -> None:
    """The same without an event loop."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what() if callable(what) else what}"
        time.sleep(0.02)


async def until_logged(server: RunningServer, line: str, times: int = 1) -> None:
    await until(lambda: server.log().count(line) >= times, lambda: f"{line!r} is logged {times} times\n{server.log()}")


async def healthy(server: Address) -> None:
    """Wait until the server is healthy."""
    await until_health(server, lambda status, _: status == 200)


async def unhealthy(server: Address, reason: str = "") -> None:
    """Wait until the server is unhealthy for this reason."""
    await until_health(server, lambda status, page: status == 503 and reason in page)


async def until_health(server: Address, fits: Callable[[int, str], bool]) -> None:
    found = (0, "")

    async def ask() -> bool:
        nonlocal found
        async with aiohttp.ClientSession() as http, http.get(f"{server.url}/health") as response:
            found = response.status, await response.text()
        return fits(*found)

    await until(ask, lambda: f"health: {found}")


async def publish_when_available(server: RunningServer, stream: str, data: str, uid: str) -> dict[str, Any]:
    """Publish one message as soon as the server accepts it; returns its position. The uid makes repeated attempts harmless."""
    position: dict[str, Any] = {}

    async def published() -> bool:
        with contextlib.suppress(AssertionError):
            position.update(await publish(server, stream, data, uid=uid))
        return bool(position)

    await until(published, server.log)
    return position

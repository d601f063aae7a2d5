"""What a running server counts, read from its metrics page."""

import asyncio
import time
from collections.abc import Callable

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tests.server import Address

TIMEOUT = 60.0  # it only matters where the condition never holds


async def metrics(server: Address) -> dict[str, float]:
    """By name without the prefix; gaps as `gaps_total{reason}`."""
    async with aiohttp.ClientSession() as http, http.get(f"{server.url}/metrics") as response:
        page = await response.text()
    return {
        sample.name.removeprefix("ropewalk_") + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


async def metrics_when(server: Address, fits: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """The metrics as soon as they fit."""
    deadline = time.monotonic() + TIMEOUT
    while not fits(found := await metrics(server)):
        assert time.monotonic() < deadline, f"not in {TIMEOUT} s: {found}"
        await asyncio.sleep(0.02)
    return found

"""What tests of broadcasters share: payloads as AnyCable's libraries write them, and waiting for what becomes of them."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import aiohttp

from tests.cable import Frame, cable
from tests.server import RunningServer

TIMEOUT = 30.0


def publication(number: int, stream: str = "news", **more: object) -> str:
    """As the libraries of AnyCable write it."""
    return json.dumps({"stream": stream, "data": json.dumps({"n": number}), **more})


async def until(holds: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < deadline, f"not in {TIMEOUT} s: {what}"
        await asyncio.sleep(0.02)


async def kept(server: RunningServer, stream: str = "news") -> list[Frame]:
    async with cable(server) as reader:
        return await reader.subscribe(stream, history={"since": 1})


def numbers(messages: list[Frame]) -> list[int]:
    return [message["message"]["n"] for message in messages]


async def health(server: RunningServer) -> tuple[int, str]:
    async with aiohttp.ClientSession() as http, http.get(f"{server.url}/health") as response:
        return response.status, await response.text()


async def unhealthy(server: RunningServer, reason: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while (found := await health(server))[0] == 200 or reason not in found[1]:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.02)


async def healthy(server: RunningServer) -> None:
    deadline = time.monotonic() + TIMEOUT
    while (found := await health(server))[0] != 200:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.02)

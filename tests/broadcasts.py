"""Payloads of broadcasters in the form of AnyCable's libraries, and waiting for their effect."""

import asyncio
import json
import time

import aiohttp

from tests.cable import Frame, cable
from tests.server import RunningServer
from tests.waiting import until as until

TIMEOUT = 60.0


def publication(number: int, stream: str = "news", **more: object) -> str:
    """As the libraries of AnyCable write it."""
    return json.dumps({"stream": stream, "data": json.dumps({"n": number}), **more})


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

"""Payloads of broadcasters in the form of AnyCable's libraries, and their effect."""

import json

from tests.cable import Frame, cable
from tests.server import RunningServer


def publication(number: int, stream: str = "news", **more: object) -> str:
    """As the libraries of AnyCable write it."""
    return json.dumps({"stream": stream, "data": json.dumps({"n": number}), **more})


async def kept(server: RunningServer, stream: str = "news") -> list[Frame]:
    async with cable(server) as reader:
        return await reader.subscribe(stream, history={"since": 1})


def numbers(messages: list[Frame]) -> list[int]:
    return [message["message"]["n"] for message in messages]

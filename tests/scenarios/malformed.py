"""What a malformed-input case is: a name, and the way to send it to a running server. It returns the answer in words.

The words are those of the table in docs/reference/errors.md, which says what the answer has to be.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from tests.cable import Cable, cable, kind
from tests.server import Address
from tests.tcp import Tcp, client_frame, tcp

Case = Callable[[Address], Awaitable[str]]
STREAM = "malformed/own"


async def _answer_to_frame(link: Tcp) -> str:
    """A close frame, or, if the connection stays, the pong that was asked for after the bad input."""
    while True:
        opcode, payload = await link.frame()
        if opcode == 0x8:
            return f"close {int.from_bytes(payload[:2])}"
        if json.loads(payload).get("type") == "pong":
            return "stays"


def frames(*parts: bytes) -> Case:
    """Raw WebSocket frames on a connection that is open and welcomed."""

    async def send(server: Address) -> str:
        async with tcp(server, upgraded=True) as link:
            await link.send(b"".join(parts) + client_frame(b'{"command":"ping"}'))
            return await _answer_to_frame(link)

    return send


def text(payload: str | bytes) -> Case:
    """One text message."""
    return frames(client_frame(payload.encode() if isinstance(payload, str) else payload))


async def _answer_to_command(client: Cable) -> str:
    """What is said about the command, or `stays` when the connection lives on and nothing is said."""
    frame = await client.next()
    match kind(frame):
        case "pong":
            return "stays"
        case "presence":
            return f"presence {frame['message']['type']}"
        case "reject_history" if "reason" in frame:
            return f"reject_history {frame['reason']}"
        case other:
            return other


def command(subscribed: bool = False, **fields: Any) -> Case:
    """A command that decodes, on a connection that stays; `subscribed`: it listens to STREAM."""

    async def send(server: Address) -> str:
        async with cable(server) as client:
            if subscribed:
                await client.subscribe(STREAM)
            await client.send(**fields)
            await client.send(command="ping")
            answer = await _answer_to_command(client)
            if answer != "stays":
                await client.until("pong")
            return answer

    return send


def request(data: bytes) -> Case:
    """The bytes of an HTTP request, or of something that takes its place."""

    async def send(server: Address) -> str:
        async with tcp(server) as link:
            await link.send(data)
            answer = await link.to_the_end() if b"\r\n\r\n" not in data else (await link.head())
            return f"HTTP {answer.split()[1].decode()}" if answer else "closed"

    return send


def http(method: str, path: str, body: Any = None, **headers: str) -> Case:
    """A request that a library can make; `body` is bytes, or an object to send as JSON."""

    async def send(server: Address) -> str:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=15), auto_decompress=False) as session,
            session.request(method, server.url + path, data=data, headers=named) as response,
        ):
            reason = await response.json()
            assert reason["error"], "a refusal says why"
            return f"HTTP {response.status}"

    return send

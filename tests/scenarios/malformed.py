"""Cases of malformed input: functions that send it to a running server and return the answer in the words of the table in
docs/reference/errors.md."""

import io
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
    """A close frame or, if the connection stays, the answer to the ping after the bad input."""
    while True:
        opcode, payload = await link.frame()
        if opcode == 0x8:
            return f"close {int.from_bytes(payload[:2])}"
        if json.loads(payload).get("type") == "pong":
            return "stays"


def frames(*parts: bytes) -> Case:
    """Raw WebSocket frames on an open connection after its welcome."""

    async def send(server: Address) -> str:
        async with tcp(server, upgraded=True) as link:
            await link.send(b"".join(parts) + client_frame(b'{"command":"ping"}'))
            return await _answer_to_frame(link)

    return send


def text(payload: str | bytes) -> Case:
    """One text message."""
    return frames(client_frame(payload.encode() if isinstance(payload, str) else payload))


async def _answer_to_command(client: Cable) -> str:
    """The answer to the command, or `stays` if there is none and the connection stays open."""
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
    """A valid command on a connection that stays open; `subscribed`: to STREAM."""

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
    """The bytes of an HTTP request, or other bytes in place of one."""

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
        given = None if data is None else io.BytesIO(data)  # aiohttp warns of large bytes
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60), auto_decompress=False) as session,
            session.request(method, server.url + path, data=given, headers=named) as response,
        ):
            reason = await response.json()
            assert reason["error"], "a refusal has a reason"
            return f"HTTP {response.status}"

    return send

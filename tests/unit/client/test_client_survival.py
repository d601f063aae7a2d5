"""The Python client with a server that sends invalid messages: it reports what it cannot read, and continues."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestServer

from ropewalk.client import Backoff, Gap, Message, Position, PresenceState, PresentMember, connect
from ropewalk.client.events import UNREADABLE
from ropewalk.protocol.client_commands import SUBPROTOCOL

SECONDS = 60
CHAT = json.dumps({"channel": "$pubsub", "stream_name": "chat"}, separators=(",", ":"))


def deep(depth: int) -> str:
    return "[" * depth + "]" * depth


def message(offset: int, text: str) -> str:
    return f'{{"identifier":{json.dumps(CHAT)},"message":{text},"stream_id":"chat","epoch":"e","offset":{offset}}}'


UNREADABLE_MESSAGES = [deep(150), deep(980), deep(100_000), '{"a":' * 5000 + "1" + "}" * 5000]
NONSENSE: list[str | bytes] = [
    "",
    "nonsense",
    "null",
    "[]",
    deep(980),
    deep(100_000),
    b"\xff\xfe",
    '{"type":7}',
    '{"type":"welcome","sid":{}}',
    '{"type":"ping","message":"soon"}',
    f'{{"type":"ping","message":{deep(980)}}}',
    f'{{"identifier":{json.dumps(CHAT)},"message":1,"offset":"x"}}',
    f'{{"identifier":{json.dumps(CHAT)},"message":1,"streams":{deep(980)}}}',
    f'{{"identifier":{json.dumps(CHAT)},"x":{deep(980)}}}',
    f'{{"type":"confirm_history","identifier":{json.dumps(CHAT)},"streams":7}}',
    f'{{"type":"presence","identifier":{json.dumps(CHAT)},"message":{deep(980)}}}',
    f'{{"type":"presence","identifier":{json.dumps(CHAT)},"message":{{"type":"join","id":7}}}}',
]


class HostileServer:
    """Sends a welcome, a confirmation and `sent` on each connection. `asked`: the positions that its clients requested."""

    def __init__(self, *sent: str | bytes) -> None:
        self.sent = sent
        self.asked: list[object] = []

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=(SUBPROTOCOL,))
        await socket.prepare(request)
        await socket.send_str('{"type":"welcome","sid":"s"}')
        async for frame in socket:
            command = json.loads(frame.data) if frame.type is WSMsgType.TEXT else {}
            if command.get("command") == "subscribe":
                self.asked.append(command.get("history", {}).get("streams"))
                await socket.send_str(json.dumps({"type": "confirm_subscription", "identifier": CHAT}))
                for text in self.sent:
                    await (socket.send_str(text) if isinstance(text, str) else socket.send_bytes(text))
            if command.get("command") == "presence":
                info = (
                    f'{{"type":"info","total":1,"records":[{{"id":"7","info":{deep(100)}}},{{"id":"8","info":{deep(129)}}}]}}'
                )
                await socket.send_str(f'{{"type":"presence","identifier":{json.dumps(CHAT)},"message":{info}}}')
        return socket

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        application = web.Application()
        application.router.add_get("/cable", self.serve)
        async with TestServer(application) as server:
            yield str(server.make_url("/"))


@pytest.mark.parametrize("text", UNREADABLE_MESSAGES, ids=lambda text: f"{text[:6]} of {len(text)}")
async def test_unreadable_message_is_a_gap_of_one_and_is_not_requested_again(text: str) -> None:
    hostile = HostileServer(message(1, '"first"'), message(2, text), message(3, '"last"'))
    async with hostile.running() as url, connect(url, backoff=Backoff(first=0.02, cap=0.2)) as client:
        stream = await client.subscribe("chat")
        async with asyncio.timeout(SECONDS):
            events = [await anext(stream) for _ in range(3)]
        assert events[0] == Message("first", "chat", "e", 1)
        assert events[1] == Gap("chat", UNREADABLE, Position("e", 1), "e", 3, 2)
        assert isinstance(events[1], Gap)
        assert events[1].missed == 1
        assert events[2] == Message("last", "chat", "e", 3)
        client.cut()
        async with asyncio.timeout(SECONDS):
            while len(hostile.asked) < 2:
                await asyncio.sleep(0.01)
        assert hostile.asked[1] == {"chat": {"epoch": "e", "offset": 3}}


async def test_invalid_messages_are_ignored() -> None:
    hostile = HostileServer(*NONSENSE, message(1, '"still here"'))
    async with hostile.running() as url, connect(url) as client:
        stream = await client.subscribe("chat")
        async with asyncio.timeout(SECONDS):
            assert await anext(stream) == Message("still here", "chat", "e", 1)
        assert len(hostile.asked) == 1


async def test_member_with_unreadable_info_is_listed_without_it() -> None:
    async with HostileServer().running() as url, connect(url) as client:
        stream = await client.subscribe("chat")
        found = await stream.presence()
        assert found == PresenceState(1, (PresentMember("7", json.loads(deep(100))), PresentMember("8", None)))

"""The SSE door over a real socket, in front of a real node on the memory backend."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientResponse

from ropewalk.adapters.apps.noauth import NoAuth
from ropewalk.adapters.apps.streams import PubSubChannel
from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.adapters.pubsubs.local import LocalPubSub
from ropewalk.adapters.transports.sse import MAX_BODY, SseDoor
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.engine.node import Node
from ropewalk.model.limits import Limits
from ropewalk.model.messages import Publication
from ropewalk.model.rules import StreamRules
from ropewalk.protocol.handshake import AllowedOrigins
from tests.unit.adapters.serving import Client, serving

DEADLINE = 10.0
CHAT = '{"channel":"$pubsub","stream_name":"chat"}'


@asynccontextmanager
async def running_node(known: bool = True) -> AsyncIterator[Node]:
    rules = Rulebook(StreamRules(history_limit=3))
    backend = MemoryBackend(rules, time.time, new_epoch=lambda: "e1")
    authenticators = [NoAuth()] if known else []
    limits = Limits(ping_interval=0)
    channels = [PubSubChannel(public=True)]
    node = Node(backend, LocalPubSub(), authenticators, channels, rules, limits, Stats(), time.time)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with running_node() as node:
        yield node


@asynccontextmanager
async def door(node: Node, *origins: str) -> AsyncIterator[Client]:
    async with serving(SseDoor(node.open, AllowedOrigins(origins), 3, keepalive=0.05).routes()) as client:
        yield client


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with door(node) as client:
        yield client


async def publish(node: Node, *payloads: bytes, stream: str = "chat") -> None:
    await node.broker.publish([Publication(stream, payload) for payload in payloads])


async def event(response: ClientResponse) -> dict[str, str]:
    """The next event, its fields by name; comments are passed over, as every client does."""
    async with asyncio.timeout(DEADLINE):
        while True:
            lines = (await response.content.readuntil(b"\n\n")).decode().splitlines()
            fields = dict(line.split(": ", 1) for line in lines if line and not line.startswith(":"))
            if fields:
                return fields


async def kinds(response: ClientResponse, count: int) -> list[str]:
    """The types of the next events; the data of those that have none."""
    events = [await event(response) for _ in range(count)]
    return [fields.get("event", fields["data"]) for fields in events]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.01)


# --- what flows -------------------------------------------------------------------------------------------------------


async def test_a_get_is_welcomed_confirmed_and_then_live(client: Client, node: Node) -> None:
    async with client.get("/events?stream=chat") as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["X-Accel-Buffering"] == "no"
        assert "no-store" in response.headers["Cache-Control"]
        assert await kinds(response, 2) == ["welcome", "confirm_subscription"]
        await publish(node, b'{"n":12345678901234567890}')
        assert await event(response) == {"data": '{"n":12345678901234567890}', "id": "1/e1/chat"}


async def test_history_comes_between_the_confirmation_and_what_is_live(client: Client, node: Node) -> None:
    await publish(node, b"1", b"2")
    async with client.get("/events?stream=chat&history_since=1") as response:
        await publish(node, b"3")
        assert await kinds(response, 6) == ["welcome", "confirm_subscription", "1", "2", "confirm_history", "3"]


@pytest.mark.parametrize("way", ["header", "parameter"])
async def test_a_last_event_id_resumes_after_its_position(client: Client, node: Node, way: str) -> None:
    await publish(node, b"1", b"2", b"3", stream="chat/ü 1")
    last = "1/e1/chat/%C3%BC%201"
    headers = {"Last-Event-ID": last} if way == "header" else {}
    params = {"stream": "chat/ü 1"} | ({"last_event_id": last} if way == "parameter" else {})
    async with client.get("/events", params=params, headers=headers) as response:
        assert await kinds(response, 5) == ["welcome", "confirm_subscription", "2", "3", "confirm_history"]


async def test_a_position_that_is_no_longer_kept_is_a_gap_that_is_said(client: Client, node: Node) -> None:
    await publish(node, *(b"%d" % number for number in range(1, 7)))
    async with client.get("/events?stream=chat", headers={"Last-Event-ID": "1/e1/chat"}) as response:
        assert await kinds(response, 2) == ["welcome", "confirm_subscription"]
        gap = await event(response)
        assert gap["event"] == "reject_history"
        assert json.loads(gap["data"])["streams"]["chat"] == {"reason": "trimmed", "epoch": "e1", "oldest": 4, "tip": 6}
        await publish(node, b"7")
        assert [(await event(response))["id"] for _ in range(4)] == [f"{offset}/e1/chat" for offset in (4, 5, 6, 7)]


async def test_a_post_subscribes_to_several_and_gets_whole_objects(client: Client, node: Node) -> None:
    other = CHAT.replace("chat", "other")
    body = "\n".join(json.dumps({"command": "subscribe", "identifier": identifier}) for identifier in (CHAT, other))
    async with client.post("/events", data=body) as response:
        assert await kinds(response, 3) == ["welcome", "confirm_subscription", "confirm_subscription"]
        await publish(node, b"1", stream="other")
        fields = await event(response)
        assert json.loads(fields["data"]) == {
            "identifier": other,
            "message": 1,
            "stream_id": "other",
            "epoch": "e1",
            "offset": 1,
        }
        assert fields["id"] == "1/e1/other"


async def test_raw_brings_the_data_and_nothing_else(client: Client, node: Node) -> None:
    async with client.get("/events?stream=chat&raw=1") as response:
        await publish(node, b'"hello"')
        assert await event(response) == {"data": "hello", "id": "1/e1/chat"}


async def test_who_comes_while_others_publish_gets_each_position_once_and_in_order(client: Client, node: Node) -> None:
    async def keep_publishing() -> None:
        for number in range(1, 301):
            await publish(node, b"%d" % number)
            await asyncio.sleep(0)

    await publish(node, b"0")
    busy = asyncio.create_task(keep_publishing())
    async with client.get("/events?stream=chat&history_since=1&raw=1") as response:
        first = int((await event(response))["data"])
        rest = [int((await event(response))["data"]) for _ in range(first, 300)]
    await busy
    assert [first, *rest] == list(range(first, 301))


async def test_a_silent_stream_is_kept_alive_by_comments(client: Client, node: Node) -> None:
    async with client.get("/events?stream=chat&raw=1") as response:
        async with asyncio.timeout(DEADLINE):
            assert [await response.content.readuntil(b"\n\n") for _ in range(3)] == [b":\n\n"] * 3
        await publish(node, b"1")
        assert (await event(response))["data"] == "1"


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_a_peer_that_goes_takes_its_session_with_it_even_when_nothing_is_said(client: Client, node: Node) -> None:
    response = await client.get("/events?stream=chat&raw=1")
    assert len(node.services.sessions) == 1
    response.close()
    await until(lambda: not node.services.sessions)


async def test_a_node_that_shuts_down_says_so_and_ends_the_answer(client: Client, node: Node) -> None:
    async with client.get("/events?stream=chat") as response:
        assert await kinds(response, 2) == ["welcome", "confirm_subscription"]
        await node.drain(0)
        goodbye = await event(response)
        assert goodbye["event"] == "disconnect"
        assert json.loads(goodbye["data"]) == {"type": "disconnect", "reason": "server_restart", "reconnect": True}
        assert await response.content.read() == b""


# --- refusals ---------------------------------------------------------------------------------------------------------


async def test_who_is_not_known_is_answered_with_401() -> None:
    async with running_node(known=False) as node, door(node) as client:
        assert (await client.get("/events?stream=chat")).status == 401
        assert not node.services.sessions


def subscribes(*identifiers: str) -> str:
    return "\n".join(json.dumps({"command": "subscribe", "identifier": identifier}) for identifier in identifiers)


@pytest.mark.parametrize(
    ("method", "target", "body", "headers"),
    [
        ("GET", "/events", "", {}),
        ("GET", "/events?channel=NobodyChannel", "", {}),
        ("GET", "/events?signed_stream=forged--00", "", {}),
        ("GET", "/events?stream=chat&history_since=soon", "", {}),
        ("GET", "/events?stream=chat", "", {"Last-Event-ID": "hostile"}),
        ("GET", "/events?stream=chat&last_event_id=1/2", "", {}),
        ("POST", "/events", "", {}),
        ("POST", "/events", "not json", {}),
        ("POST", "/events", "not gzip", {"Content-Encoding": "gzip"}),
        ("POST", "/events", '{"command":"ping"}', {}),
        ("POST", "/events", subscribes(CHAT, '{"channel":"NobodyChannel"}'), {}),
        ("POST", "/events", subscribes(CHAT, "b", "c", "d"), {}),
    ],
)
async def test_a_request_that_cannot_be_granted_whole_is_answered_with_400_and_leaves_no_session(
    client: Client, node: Node, method: str, target: str, body: str, headers: dict[str, str]
) -> None:
    async with client.request(method, target, data=body.encode() or None, headers=headers) as response:
        assert response.status == 400
        assert (await response.json())["error"]
    assert not node.services.sessions


async def test_a_body_over_the_limit_is_answered_with_413(client: Client) -> None:
    assert (await client.post("/events", data=b" " * (MAX_BODY + 1))).status == 413


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "HEAD"])
async def test_other_methods_are_answered_with_405(client: Client, method: str) -> None:
    response = await client.request(method, "/events?stream=chat")
    assert response.status == 405
    assert response.headers["Allow"] == "GET, POST, OPTIONS"


# --- other origins ----------------------------------------------------------------------------------------------------

PAGE = {"Origin": "https://app.example.com"}


async def test_without_a_list_every_page_may_read_but_not_with_credentials(client: Client) -> None:
    async with client.get("/events?stream=chat", headers=PAGE) as response:
        assert response.headers["Access-Control-Allow-Origin"] == "*"
        assert "Access-Control-Allow-Credentials" not in response.headers


async def test_with_a_list_the_named_page_may_read_with_credentials(node: Node) -> None:
    async with door(node, "*.example.com") as client, client.get("/events?stream=chat", headers=PAGE) as response:
        assert response.headers["Access-Control-Allow-Origin"] == "https://app.example.com"
        assert response.headers["Access-Control-Allow-Credentials"] == "true"
        assert response.headers["Vary"] == "Origin"


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.test"}, {}])
async def test_with_a_list_every_other_page_is_answered_with_403(node: Node, headers: dict[str, str]) -> None:
    async with door(node, "*.example.com") as client:
        for method in ("GET", "POST", "OPTIONS"):
            response = await client.request(method, "/events?stream=chat", headers=headers)
            assert response.status == 403
            assert "Access-Control-Allow-Origin" not in response.headers


async def test_a_browser_that_asks_first_is_told_what_it_may_send(client: Client) -> None:
    asked = {**PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-jid"}
    async with client.options("/events", headers=asked) as response:
        assert response.status == 200
        assert response.headers["Access-Control-Allow-Methods"] == "GET, POST, OPTIONS"
        assert response.headers["Access-Control-Allow-Headers"] == "x-jid"

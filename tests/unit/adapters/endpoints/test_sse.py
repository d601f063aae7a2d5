"""The SSE endpoint over a real socket, in front of a real node on the memory backend."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientResponse

from ropewalk.adapters.apps.authenticators import NoAuth
from ropewalk.adapters.apps.streams import PubSubChannel
from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.adapters.endpoints.sse import MAX_BODY, SseEndpoint
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.engine.context import Access, EngineContext
from ropewalk.engine.node import Node
from ropewalk.model.limits import Limits
from ropewalk.model.messages import Publication
from ropewalk.model.refusals import Refusal
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import Subscribed
from ropewalk.ports import Channels
from ropewalk.protocol.handshake import AllowedOrigins
from tests.unit.adapters.http_server import Client, serving
from tests.waiting import until

DEADLINE = 60.0
CHAT = '{"channel":"$pubsub","stream_name":"chat"}'
OTHER = CHAT.replace("chat", "other")


MANY = '{"channel":"Many"}'
BOTH = '{"channel":"Both"}'


class Both:
    """A channel of two streams, and one of too many streams."""

    async def subscribe(self, ids: str, identifier: str) -> Subscribed | None:
        return {BOTH: Subscribed(("a", "b")), MANY: Subscribed(tuple(f"many/{n}" for n in range(500)))}.get(identifier)


@asynccontextmanager
async def running_node(known: bool = True) -> AsyncIterator[Node]:
    rules = Rulebook(StreamRules(history_limit=3))
    backend = MemoryBackend(rules, time.time, new_epoch=lambda: "e1")
    authenticators = [NoAuth()] if known else []
    limits = Limits(ping_interval=0)
    channels: list[Channels] = [Both(), PubSubChannel(public=True)]
    node = Node(EngineContext(limits, rules, Stats(), time.time), backend, Access(authenticators, channels))
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
async def endpoint(node: Node, *origins: str, most: int = 3) -> AsyncIterator[Client]:
    async with serving(
        SseEndpoint(node.open, AllowedOrigins(origins), most, node.stats.refusals, keepalive=0.05).routes()
    ) as client:
        yield client


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with endpoint(node) as client:
        yield client


async def publish(node: Node, *payloads: bytes, stream: str = "chat") -> None:
    await node.broker.publish([Publication(stream, payload) for payload in payloads])


async def event(response: ClientResponse) -> dict[str, str]:
    """The fields of the next event with data. Comments, and ids without data, are skipped."""
    while "data" not in (fields := await block(response)):
        pass
    return fields


async def block(response: ClientResponse) -> dict[str, str]:
    async with asyncio.timeout(DEADLINE):
        lines = (await response.content.readuntil(b"\n\n")).decode().splitlines()
        return dict(line.split(": ", 1) for line in lines if line and not line.startswith(":"))


async def kinds(response: ClientResponse, count: int) -> list[str]:
    """The types of the next events, or their data if they have none."""
    events = [await event(response) for _ in range(count)]
    return [fields.get("event", fields["data"]) for fields in events]


async def positions(response: ClientResponse, count: int) -> list[tuple[str, int]]:
    """Stream and offset of the next messages. Typed events are skipped."""
    found: list[tuple[str, int]] = []
    while len(found) < count:
        fields = await event(response)
        if "event" not in fields:
            message = json.loads(fields["data"])
            found.append((message["stream_id"], message["offset"]))
    return found


# --- Messages --------------------------------------------------------------------------------------------------------


async def test_get_receives_welcome_confirmation_and_messages(client: Client, node: Node) -> None:
    async with client.get("/events?stream=chat") as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["X-Accel-Buffering"] == "no"
        assert "no-store" in response.headers["Cache-Control"]
        assert await kinds(response, 2) == ["welcome", "confirm_subscription"]
        await publish(node, b'{"n":12345678901234567890}')
        assert await event(response) == {"data": '{"n":12345678901234567890}', "id": "1/e1/chat"}


async def test_history_is_sent_between_confirmation_and_new_messages(client: Client, node: Node) -> None:
    await publish(node, b"1", b"2")
    async with client.get("/events?stream=chat&history_since=1") as response:
        await publish(node, b"3")
        assert await kinds(response, 6) == ["welcome", "confirm_subscription", "1", "2", "confirm_history", "3"]


@pytest.mark.parametrize("way", ["header", "parameter"])
async def test_last_event_id_resumes_after_its_position(client: Client, node: Node, way: str) -> None:
    await publish(node, b"1", b"2", b"3", stream="chat/ü 1")
    last = "1/e1/chat/%C3%BC%201"
    headers = {"Last-Event-ID": last} if way == "header" else {}
    params = {"stream": "chat/ü 1"} | ({"last_event_id": last} if way == "parameter" else {})
    async with client.get("/events", params=params, headers=headers) as response:
        assert await kinds(response, 5) == ["welcome", "confirm_subscription", "2", "3", "confirm_history"]


async def test_position_no_longer_kept_is_reported_as_a_gap(client: Client, node: Node) -> None:
    await publish(node, *(b"%d" % number for number in range(1, 7)))
    async with client.get("/events?stream=chat", headers={"Last-Event-ID": "1/e1/chat"}) as response:
        assert await kinds(response, 2) == ["welcome", "confirm_subscription"]
        gap = await event(response)
        assert gap["event"] == "reject_history"
        assert json.loads(gap["data"])["streams"]["chat"] == {"reason": "trimmed", "epoch": "e1", "oldest": 4, "tip": 6}
        await publish(node, b"7")
        assert [(await event(response))["id"] for _ in range(4)] == [f"{offset}/e1/chat" for offset in (4, 5, 6, 7)]


async def test_post_subscribes_to_several_channels(client: Client, node: Node) -> None:
    body = subscribes(CHAT, OTHER)
    async with client.post("/events", data=body) as response:
        assert await kinds(response, 3) == ["welcome", "confirm_subscription", "confirm_subscription"]
        await publish(node, b"1", stream="other")
        fields = await event(response)
        assert json.loads(fields["data"]) == {
            "identifier": OTHER,
            "message": 1,
            "stream_id": "other",
            "epoch": "e1",
            "offset": 1,
        }
        assert fields["id"] == ";0//chat;1/e1/other"


async def test_raw_sends_the_data_only(client: Client, node: Node) -> None:
    async with client.get("/events?stream=chat&raw=1") as response:
        await publish(node, b'"hello"')
        assert await event(response) == {"data": "hello", "id": "1/e1/chat"}


async def test_subscription_during_publishing_receives_each_position_once_in_order(client: Client, node: Node) -> None:
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


async def test_idle_response_sends_keepalive_comments(client: Client, node: Node) -> None:
    async with client.get("/events?stream=chat&raw=1") as response:
        assert await block(response) == {"id": "0//chat"}
        async with asyncio.timeout(DEADLINE):
            assert [await response.content.readuntil(b"\n\n") for _ in range(3)] == [b":\n\n"] * 3
        await publish(node, b"1")
        assert (await event(response))["data"] == "1"


# --- Resumption ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["stream=chat", "stream=chat&raw=1"])
async def test_client_disconnected_before_the_first_message_resumes_without_loss(
    client: Client, node: Node, query: str
) -> None:
    await publish(node, b"1")
    async with client.get(f"/events?{query}") as response:
        while "id" not in (confirmation := await block(response)):
            pass
    await publish(node, b"2", b"3")
    async with client.get(f"/events?{query}&raw=1", headers={"Last-Event-ID": confirmation["id"]}) as response:
        assert [(await event(response))["data"] for _ in range(2)] == ["2", "3"]


async def test_client_of_a_new_stream_resumes_without_loss(client: Client, node: Node) -> None:
    async with client.get("/events?stream=chat") as response:
        assert await kinds(response, 1) == ["welcome"]
        confirmation = await event(response)
    await publish(node, b"1", b"2")
    async with client.get("/events?stream=chat", headers={"Last-Event-ID": confirmation["id"]}) as response:
        assert await kinds(response, 5) == ["welcome", "confirm_subscription", "1", "2", "confirm_history"]


async def test_every_stream_of_a_channel_is_resumed(client: Client, node: Node) -> None:
    await publish(node, b"1", stream="a")
    async with client.get("/events", params={"identifier": BOTH}) as response:
        assert await kinds(response, 2) == ["welcome", "confirm_subscription"]
        await publish(node, b"2", stream="a")
        last = (await event(response))["id"]
    await publish(node, b"3", stream="a")
    await publish(node, b'"x"', b'"y"', stream="b")
    async with client.get("/events", params={"identifier": BOTH}, headers={"Last-Event-ID": last}) as response:
        assert await kinds(response, 6) == ["welcome", "confirm_subscription", "3", "x", "y", "confirm_history"]


async def test_every_subscription_of_a_post_is_resumed_from_any_event(client: Client, node: Node) -> None:
    body = subscribes(CHAT, OTHER)
    async with client.post("/events", data=body) as response:
        assert await kinds(response, 3) == ["welcome", "confirm_subscription", "confirm_subscription"]
        await publish(node, b"1", stream="other")
        last = (await event(response))["id"]
    await publish(node, b"1", b"2")
    await publish(node, b"2", stream="other")
    async with client.post("/events", data=body, headers={"Last-Event-ID": last}) as response:
        assert await positions(response, 3) == [("chat", 1), ("chat", 2), ("other", 2)]


async def test_two_subscriptions_of_one_stream_are_resumed_separately(client: Client, node: Node) -> None:
    spaced = CHAT.replace(":", ": ")
    body = subscribes(CHAT, spaced)
    async with client.post("/events", data=body) as response:
        assert await kinds(response, 3) == ["welcome", "confirm_subscription", "confirm_subscription"]
        await publish(node, b"1")
        first = await event(response)
    async with client.post("/events", data=body, headers={"Last-Event-ID": first["id"]}) as response:
        (missed,) = [fields for fields in [await event(response) for _ in range(6)] if "event" not in fields]
        assert json.loads(missed["data"])["offset"] == 1
        assert {json.loads(fields["data"])["identifier"] for fields in (first, missed)} == {CHAT, spaced}
        await publish(node, b"2")
        assert await positions(response, 2) == [("chat", 2), ("chat", 2)]


async def test_gap_is_not_reported_twice(client: Client, node: Node) -> None:
    await publish(node, *(b"%d" % number for number in range(1, 7)))
    async with client.get("/events?stream=chat", headers={"Last-Event-ID": "1/e1/chat"}) as response:
        while (gap := await event(response)).get("event") != "reject_history":
            pass
    async with client.get("/events?stream=chat", headers={"Last-Event-ID": gap["id"]}) as response:
        assert await kinds(response, 6) == ["welcome", "confirm_subscription", "4", "5", "6", "confirm_history"]


async def test_channel_with_too_many_streams_for_an_event_id_is_refused(client: Client, node: Node) -> None:
    async with client.get("/events", params={"identifier": MANY}) as response:
        assert response.status == 400
        assert "fewer streams" in (await response.json())["error"]
    assert not node.sessions.live


# --- Long histories --------------------------------------------------------------------------------------------------

LONG = b'"%b"' % (b"x" * 100_000)


async def test_long_history_arrives_completely(client: Client, node: Node) -> None:
    await publish(node, LONG, LONG, LONG)
    async with client.get("/events?stream=chat&history_since=1") as response:
        assert await kinds(response, 2) == ["welcome", "confirm_subscription"]
        assert [len((await event(response))["data"]) for _ in range(3)] == [100_000] * 3
        await publish(node, b"4")
        assert await kinds(response, 2) == ["confirm_history", "4"]


async def test_long_histories_of_many_subscriptions_arrive_in_order(node: Node) -> None:
    names = [f"long/{number}" for number in range(20)]  # together more than may be pending for a slow client
    for name in names:
        await publish(node, LONG, LONG, stream=name)
    commands = [
        {"command": "subscribe", "identifier": CHAT.replace("chat", name), "history": {"since": 1}}
        for name in [*names, *names[:1]]
    ]
    async with endpoint(node, most=30) as client:
        async with client.post("/events", data="\n".join(map(json.dumps, commands))) as response:
            found = await positions(response, 40)
        assert found == [(name, offset) for name in names for offset in (1, 2)]


async def test_rejected_subscription_behind_a_long_history_is_answered_with_400(client: Client, node: Node) -> None:
    await publish(node, LONG, LONG)
    first = json.dumps({"command": "subscribe", "identifier": CHAT, "history": {"since": 1}})
    async with client.post("/events", data=first + "\n" + subscribes('{"channel":"Nobody"}')) as response:
        assert response.status == 400
    await until(lambda: not node.sessions.live and not node.hub.streams())


# --- End of the connection -------------------------------------------------------------------------------------------


async def test_disconnected_client_ends_its_session_without_traffic(client: Client, node: Node) -> None:
    response = await client.get("/events?stream=chat&raw=1")
    assert len(node.sessions.live) == 1
    response.close()
    await until(lambda: not node.sessions.live)


async def test_draining_node_sends_disconnect_and_ends_the_response(client: Client, node: Node) -> None:
    async with client.get("/events?stream=chat") as response:
        assert await kinds(response, 2) == ["welcome", "confirm_subscription"]
        await node.drain(0)
        goodbye = await event(response)
        assert goodbye["event"] == "disconnect"
        assert json.loads(goodbye["data"]) == {"type": "disconnect", "reason": "server_restart", "reconnect": True}
        assert await response.content.read() == b""


# --- Refusals --------------------------------------------------------------------------------------------------------


async def test_unauthenticated_client_is_answered_with_401() -> None:
    async with running_node(known=False) as node, endpoint(node) as client:
        assert (await client.get("/events?stream=chat")).status == 401
        assert not node.sessions.live


def subscribes(*identifiers: str) -> str:
    return "\n".join(json.dumps({"command": "subscribe", "identifier": identifier}) for identifier in identifiers)


async def test_invalid_request_is_answered_with_400_and_leaves_no_session(
    client: Client, node: Node, subtests: pytest.Subtests
) -> None:
    rows: list[tuple[str, str, str, dict[str, str]]] = [
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
    ]
    for method, target, body, headers in rows:
        with subtests.test(method=method, target=target, body=body, headers=headers):
            async with client.request(method, target, data=body.encode() or None, headers=headers) as response:
                assert response.status == 400
                assert (await response.json())["error"]
            assert not node.sessions.live


async def test_body_over_the_limit_is_answered_with_413(client: Client, node: Node) -> None:
    assert (await client.post("/events", data=b" " * (MAX_BODY + 1))).status == 413
    assert node.stats.refusals == {Refusal.BODY_TOO_LARGE: 1}


async def test_command_that_is_nested_too_deeply_is_answered_with_400(client: Client, node: Node) -> None:
    command = json.dumps({"command": "subscribe", "identifier": CHAT, "presence": {"id": "1", "info": 0}})
    async with client.post("/events", data=command.replace("0", "[" * 129 + "]" * 129)) as response:
        assert response.status == 400
        assert (await response.json())["error"] == "command 1 is nested more than 128 deep"
    assert node.stats.refusals == {Refusal.NESTING: 1}


async def test_other_methods_are_answered_with_405(client: Client, subtests: pytest.Subtests) -> None:
    for method in ["PUT", "PATCH", "DELETE", "HEAD"]:
        with subtests.test(method=method):
            response = await client.request(method, "/events?stream=chat")
            assert response.status == 405
            assert response.headers["Allow"] == "GET, POST, OPTIONS"


# --- CORS ------------------------------------------------------------------------------------------------------------

PAGE = {"Origin": "https://app.example.com"}


async def test_star_as_allowed_origin_gives_no_page_the_credentials(node: Node) -> None:
    async with (
        endpoint(node, "*", "app.example.com") as client,
        client.get("/events?stream=chat", headers=PAGE) as response,
    ):
        assert response.headers["Access-Control-Allow-Origin"] == "*"
        assert "Access-Control-Allow-Credentials" not in response.headers


async def test_without_allowed_origins_every_page_may_read_without_credentials(client: Client) -> None:
    async with client.get("/events?stream=chat", headers=PAGE) as response:
        assert response.headers["Access-Control-Allow-Origin"] == "*"
        assert "Access-Control-Allow-Credentials" not in response.headers


async def test_allowed_origin_may_read_with_credentials(node: Node) -> None:
    async with endpoint(node, "*.example.com") as client, client.get("/events?stream=chat", headers=PAGE) as response:
        assert response.headers["Access-Control-Allow-Origin"] == "https://app.example.com"
        assert response.headers["Access-Control-Allow-Credentials"] == "true"
        assert response.headers["Vary"] == "Origin"


async def test_other_origins_are_answered_with_403(node: Node) -> None:
    headers = {"Origin": "https://evil.test"}
    async with endpoint(node, "*.example.com") as client:
        for method in ("GET", "POST", "OPTIONS"):
            response = await client.request(method, "/events?stream=chat", headers=headers)
            assert response.status == 403
            assert "Access-Control-Allow-Origin" not in response.headers


async def test_cors_preflight_lists_allowed_methods_and_headers(client: Client) -> None:
    asked = {**PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-jid"}
    async with client.options("/events", headers=asked) as response:
        assert response.status == 200
        assert response.headers["Access-Control-Allow-Methods"] == "GET, POST, OPTIONS"
        assert response.headers["Access-Control-Allow-Headers"] == "x-jid"

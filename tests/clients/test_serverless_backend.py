"""`@anycable/serverless-js`, a third-party RPC backend for AnyCable, called by the server over HTTP."""

from collections.abc import AsyncIterator
from urllib.parse import urlencode

import pytest
import pytest_asyncio

from tests.clients.script import Client, Event, Script, node_process, texts
from tests.server import RunningServer, publish, running_server

pytestmark = pytest.mark.needs_node

RPC_KEY, BROADCAST_KEY, JWT_SECRET = "for the application", "for the server", "for tokens, thirty-two bytes long"
BASE = "actioncable-v1-json"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def backend() -> AsyncIterator[Client]:
    """One for all tests here, which use names and rooms of their own."""
    async with node_process("serverless_backend.js") as node:
        yield Client(node.new_script("backend"), "backend")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(backend: Client) -> AsyncIterator[RunningServer]:
    port = (await backend.sees("listening"))["port"]
    keys = ("--http_rpc_secret", RPC_KEY, "--broadcast_key", BROADCAST_KEY, "--jwt_secret", JWT_SECRET)
    with running_server("--rpc_host", f"http://127.0.0.1:{port}/anycable", *keys) as server:
        await backend.order("broadcastTo", url=f"{server.url}/_broadcast", key=BROADCAST_KEY)
        yield server


def address(server: RunningServer, name: str) -> str:
    return f"{server.cable}?{urlencode({'name': name})}"


async def enter(script: Script, server: RunningServer, name: str, room: str, protocol: str = "") -> Client:
    client = await script.connect(name, address(server, name), **({"protocol": protocol} if protocol else {}))
    await client.subscribe("room", kind="chat", params={"room": room})
    return client


async def perform(client: Client, action: str, **data: object) -> None:
    await client.order("perform", channel="room", action=action, data=data)


async def speak(client: Client, text: str) -> None:
    await perform(client, "speak", text=text)


def calls(backend: Client, *clients: Client) -> list[str]:
    """The calls for these clients."""
    return [event.get("command") or event["method"] for event in of_clients(backend.all("asked"), *clients)]


def of_clients(events: list[Event], *clients: Client) -> list[Event]:
    sids = {event["sid"] for client in clients for event in client.all("connect")}
    return [event for event in events if event["sid"] in sids]


async def test_backend_accepts_and_rejects_connections(anycable: Script, server: RunningServer, backend: Client) -> None:
    ann = await anycable.connect("Ann", address(server, "Ann"))
    unnamed = await anycable.open("unnamed", server.cable)
    mallory = await anycable.open("Mallory", address(server, "Mallory"))

    sid = (await ann.sees("connect"))["sid"]
    assert await ann.frame("welcome") == {"type": "welcome", "sid": sid}
    assert (await backend.sees("asked", method="connect", sid=sid))["authorization"] == f"Bearer {RPC_KEY}"
    refusal = {"type": "disconnect", "reason": "unauthorized", "reconnect": False}  # the server adds `reconnect`
    assert await unnamed.frame("disconnect") == refusal
    assert (await unnamed.sees("socket_close"))["code"] == 1000
    assert (await mallory.sees("socket_close"))["code"] == 1011
    assert mallory.frames() == []


async def test_backend_accepts_and_rejects_subscriptions(anycable: Script, server: RunningServer, backend: Client) -> None:
    ann = await enter(anycable, server, "Ann", "entrance")

    assert texts(await ann.gets("room", 1)) == [{"hello": "Ann"}]
    kinds = [frame.get("type") for frame in ann.frames() if frame.get("type") not in ("ping", "confirm_history")]
    assert kinds == ["welcome", "confirm_subscription", None]
    assert (await ann.frame("confirm_history")).keys() == {"type", "identifier"}

    await ann.order("subscribe", channel="cellar", kind="chat", params={"room": "cellar"})
    await ann.order("subscribe", channel="unknown", kind="NoChannel", params={})
    for channel in ("cellar", "unknown"):
        assert (await ann.sees("channel_close", channel=channel))["error"] == "SubscriptionRejectedError"
    (error,) = of_clients(backend.all("error"), ann)
    assert "NoChannel" in error["text"]


async def test_broadcasts_reach_all_clients_in_order_and_channel_state_is_kept(
    anycable: Script, server: RunningServer, backend: Client
) -> None:
    ann, bo = [await enter(anycable, server, name, "broadcasts") for name in ("Ann", "Bo")]

    await speak(ann, "one")
    await bo.gets("room", 2)
    await speak(bo, "two")
    await ann.gets("room", 3)
    await speak(ann, "three")

    said = [
        {"name": "Ann", "text": "one", "number": 1},
        {"name": "Bo", "text": "two", "number": 1},
        {"name": "Ann", "text": "three", "number": 2},
    ]
    for client in (ann, bo):
        received = await client.gets("room", 4)
        assert texts(received) == [{"hello": client.name}, *said]
        assert [event["meta"]["offset"] for event in received[1:]] == [1, 2, 3]


async def test_backend_stops_streams_and_closes_connections(anycable: Script, server: RunningServer, backend: Client) -> None:
    ann = await enter(anycable, server, "Amy", "stops")
    await ann.gets("room", 1)

    async def publish_to_both(text: str) -> None:
        for stream in ("news:stops", "chat:stops"):
            await publish(server, stream, f'"{text} {stream}"', BROADCAST_KEY)

    await publish_to_both("first")
    await ann.gets("room", 3)
    await perform(ann, "stopNews")
    await ann.gets("room", 4)
    await publish_to_both("second")
    await ann.gets("room", 5)
    await perform(ann, "stopAll")
    await ann.gets("room", 6)
    await publish_to_both("third")
    await perform(ann, "kick")
    await ann.sees("disconnect")

    assert texts(ann.all("message"))[1:] == [
        "first news:stops",
        "first chat:stops",
        "no news from now on",
        "second chat:stops",
        "nothing from now on",
        "out with you",
    ]
    await backend.sees("gone", name="Amy")


async def test_backend_is_notified_of_unsubscribes_and_disconnects(
    anycable: Script, server: RunningServer, backend: Client
) -> None:
    ann = await enter(anycable, server, "Ada", "exits")
    bo = await enter(anycable, server, "Bob", "exits", protocol=BASE)

    await ann.order("unsubscribe", channel="room")
    await backend.sees("unsubscribed", name="Ada", room="exits")
    await bo.order("disconnect")
    await backend.sees("unsubscribed", name="Bob", room="exits")
    await backend.sees("gone", name="Bob")

    assert backend.all("gone", name="Ada") == []
    assert of_clients(backend.all("error"), ann, bo) == []


async def test_resumed_client_misses_no_message_and_causes_no_disconnect_call(
    anycable: Script, server: RunningServer, backend: Client
) -> None:
    ann, bo = [await enter(anycable, server, name, "resume") for name in ("Ann", "Bo")]
    await speak(ann, "one")
    await ann.gets("room", 2)

    await ann.lose("reset")
    await speak(bo, "two")
    await bo.gets("room", 3)
    assert (await ann.come_back())["restored"] is True
    await speak(ann, "three")

    received = texts(await ann.gets("room", 4))[1:]
    assert [message["text"] for message in received if isinstance(message, dict)] == ["one", "two", "three"]
    assert received[-1] == {"name": "Ann", "text": "three", "number": 2}
    assert calls(backend, ann, bo) == ["connect", "subscribe", "connect", "subscribe", "message", "message", "message"]


async def test_tokens_of_the_library_are_accepted(anycable: Script, server: RunningServer, backend: Client) -> None:
    await backend.order("token", secret=JWT_SECRET, identifiers={"name": "Cy"})
    token = (await backend.sees("token"))["token"]

    cy = await anycable.connect("Cy", server.cable, token=token)
    await cy.subscribe("room", kind="chat", params={"room": "tokens"})

    assert texts(await cy.gets("room", 1)) == [{"hello": "Cy"}]
    assert calls(backend, cy) == ["subscribe"]

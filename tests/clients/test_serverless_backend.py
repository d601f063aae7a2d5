"""`@anycable/serverless-js`, an application that others made for AnyCable, asked by our server over HTTP."""

from collections.abc import AsyncIterator
from urllib.parse import urlencode

import pytest

from tests.clients.script import Client, Script, running_script, texts
from tests.server import RunningServer, publish, running_server

pytestmark = pytest.mark.needs_node

RPC_KEY, BROADCAST_KEY, JWT_SECRET = "for the application", "for the server", "for tokens, thirty-two bytes long"
BASE = "actioncable-v1-json"


@pytest.fixture
async def backend() -> AsyncIterator[Client]:
    async with running_script("serverless_backend.js") as script:
        yield Client(script, "backend")


@pytest.fixture
async def server(backend: Client) -> AsyncIterator[RunningServer]:
    port = (await backend.sees("listening"))["port"]
    keys = ("--http_rpc_secret", RPC_KEY, "--broadcast_key", BROADCAST_KEY, "--jwt_secret", JWT_SECRET)
    with running_server("--rpc_host", f"http://127.0.0.1:{port}/anycable", *keys) as server:
        await backend.order("broadcastTo", url=f"{server.url}/_broadcast", key=BROADCAST_KEY)
        yield server


def address(server: RunningServer, name: str) -> str:
    return f"{server.cable}?{urlencode({'name': name})}"


async def enter(script: Script, server: RunningServer, name: str, room: str = "lobby", protocol: str = "") -> Client:
    client = await script.connect(name, address(server, name), **({"protocol": protocol} if protocol else {}))
    await client.subscribe("room", kind="chat", params={"room": room})
    return client


async def perform(client: Client, action: str, **data: object) -> None:
    await client.order("perform", channel="room", action=action, data=data)


async def speak(client: Client, text: str) -> None:
    await perform(client, "speak", text=text)


def asked(backend: Client) -> list[str]:
    return [event.get("command") or event["method"] for event in backend.all("asked")]


async def test_it_lets_clients_in_and_turns_them_away(anycable: Script, server: RunningServer, backend: Client) -> None:
    ann = await anycable.connect("Ann", address(server, "Ann"))
    nobody = await anycable.open("nobody", server.cable)
    mallory = await anycable.open("Mallory", address(server, "Mallory"))

    sid = (await ann.sees("connect"))["sid"]
    assert await ann.frame("welcome") == {"type": "welcome", "sid": sid}
    assert (await backend.sees("asked", method="connect"))["authorization"] == f"Bearer {RPC_KEY}"
    assert backend.all("asked", sid=sid) != []
    refusal = {"type": "disconnect", "reason": "unauthorized", "reconnect": False}  # the last of it is added by the server
    assert await nobody.frame("disconnect") == refusal
    assert (await nobody.sees("socket_close"))["code"] == 1000
    assert (await mallory.sees("socket_close"))["code"] == 1011
    assert mallory.frames() == []


async def test_it_grants_and_rejects_subscriptions(anycable: Script, server: RunningServer, backend: Client) -> None:
    ann = await enter(anycable, server, "Ann")

    assert texts(await ann.gets("room", 1)) == [{"hello": "Ann"}]
    kinds = [frame.get("type") for frame in ann.frames() if frame.get("type") not in ("ping", "confirm_history")]
    assert kinds == ["welcome", "confirm_subscription", None]
    assert (await ann.frame("confirm_history")).keys() == {"type", "identifier"}

    await ann.order("subscribe", channel="cellar", kind="chat", params={"room": "cellar"})
    await ann.order("subscribe", channel="unknown", kind="NoChannel", params={})
    for channel in ("cellar", "unknown"):
        assert (await ann.sees("channel_close", channel=channel))["error"] == "SubscriptionRejectedError"
    assert "NoChannel" in (await backend.sees("error"))["text"]


async def test_what_it_broadcasts_reaches_everybody_in_order_and_its_state_is_kept(
    anycable: Script, server: RunningServer, backend: Client
) -> None:
    ann, bo = [await enter(anycable, server, name) for name in ("Ann", "Bo")]

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


async def test_it_stops_streams_and_closes_connections(anycable: Script, server: RunningServer, backend: Client) -> None:
    ann = await enter(anycable, server, "Ann")
    await ann.gets("room", 1)

    async def tell(text: str) -> None:
        for stream in ("news", "chat:lobby"):
            await publish(server, stream, f'"{text} {stream}"', BROADCAST_KEY)

    await tell("first")
    await ann.gets("room", 3)
    await perform(ann, "stopNews")
    await ann.gets("room", 4)
    await tell("second")
    await ann.gets("room", 5)
    await perform(ann, "stopAll")
    await ann.gets("room", 6)
    await tell("third")
    await perform(ann, "kick")
    await ann.sees("disconnect")

    assert texts(ann.all("message"))[1:] == [
        "first news",
        "first chat:lobby",
        "no news from now on",
        "second chat:lobby",
        "nothing from now on",
        "out with you",
    ]
    await backend.sees("gone", name="Ann")


async def test_it_hears_of_unsubscribes_and_of_clients_that_are_gone(
    anycable: Script, server: RunningServer, backend: Client
) -> None:
    ann = await enter(anycable, server, "Ann")
    bo = await enter(anycable, server, "Bo", protocol=BASE)

    await ann.order("unsubscribe", channel="room")
    await backend.sees("unsubscribed", name="Ann", room="lobby")
    await bo.order("disconnect")
    await backend.sees("unsubscribed", name="Bo", room="lobby")
    await backend.sees("gone", name="Bo")

    assert backend.all("gone", name="Ann") == []
    assert backend.all("error") == []


async def test_who_comes_back_has_missed_nothing_and_is_not_gone_in_between(
    anycable: Script, server: RunningServer, backend: Client
) -> None:
    ann, bo = [await enter(anycable, server, name) for name in ("Ann", "Bo")]
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
    assert asked(backend) == ["connect", "subscribe", "connect", "subscribe", "message", "message", "message"]


async def test_its_tokens_are_ours(anycable: Script, server: RunningServer, backend: Client) -> None:
    await backend.order("token", secret=JWT_SECRET, identifiers={"name": "Cy"})
    token = (await backend.sees("token"))["token"]

    cy = await anycable.connect("Cy", server.cable, token=token)
    await cy.subscribe("room", kind="chat", params={"room": "lobby"})

    assert texts(await cy.gets("room", 1)) == [{"hello": "Cy"}]
    assert asked(backend) == ["subscribe"]

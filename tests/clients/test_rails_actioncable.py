"""`@rails/actioncable`, the client that comes with Rails, on the base protocol."""

import json
from urllib.parse import urlencode

import pytest

from tests.clients.credentials import BROADCAST_KEY, signed, token
from tests.clients.publishers import publish
from tests.clients.script import Client, Script, texts
from tests.server import RunningServer

pytestmark = pytest.mark.needs_node

LONG_SECONDS = 5000
"""Longer than the client waits for a ping."""


async def arrive(script: Script, server: RunningServer) -> Client:
    """A page whose cable is open, with a ping every second."""
    client = await script.open("page", f"{server.cable}?pi=1")
    await client.frame("welcome")
    return client


def public(stream: str) -> dict[str, str]:
    return {"channel": "$pubsub", "stream_name": stream}


async def test_base_subprotocol_is_echoed(rails: Script, public_server: RunningServer) -> None:
    page = await arrive(rails, public_server)

    assert (await page.sees("open"))["protocol"] == "actioncable-v1-json"


async def test_subscription_receives_messages_in_order(rails: Script, public_server: RunningServer, stream: str) -> None:
    page = await arrive(rails, public_server)
    await page.subscribe("chat", params=public(stream))

    await publish(public_server, stream, {"text": "one"}, ["two"], "three", 4)

    assert texts(await page.gets("chat", 4)) == [{"text": "one"}, ["two"], "three", 4]
    assert page.all("subscribed") == [{"client": "page", "channel": "chat", "event": "subscribed", "reconnected": False}]


async def test_unknown_channel_is_rejected(rails: Script, public_server: RunningServer) -> None:
    page = await arrive(rails, public_server)

    await page.order("subscribe", channel="unknown", params={"channel": "UnknownChannel"})

    await page.sees("rejected", channel="unknown")
    assert page.all("subscribed") == []


async def test_no_message_arrives_after_an_unsubscribe(rails: Script, public_server: RunningServer, stream: str) -> None:
    page = await arrive(rails, public_server)
    for name in ("left", "kept"):
        await page.subscribe(name, params=public(f"{stream}/{name}"))
        await publish(public_server, f"{stream}/{name}", "one")
        await page.gets(name, 1)

    await page.order("unsubscribe", channel="left")
    await page.subscribe("later", params=public(f"{stream}/later"))  # confirmed after the unsubscribe is handled
    await publish(public_server, f"{stream}/left", "two")
    await publish(public_server, f"{stream}/kept", "two")

    await page.gets("kept", 2)
    received = [frame["message"] for frame in page.frames() if frame.get("stream_id") == f"{stream}/left"]
    assert received == ["one"]


async def test_repeated_subscribe_is_confirmed_and_delivers_each_message_once(
    rails: Script, public_server: RunningServer, stream: str
) -> None:
    page = await arrive(rails, public_server)

    await page.subscribe("chat", params=public(stream))
    await page.subscribe("twin", params=public(stream))
    await page.frame("confirm_subscription", times=2)
    await publish(public_server, stream, "one", "two")

    assert texts(await page.gets("chat", 2)) == texts(await page.gets("twin", 2)) == ["one", "two"]
    assert [frame["offset"] for frame in page.frames() if "offset" in frame] == [1, 2]
    assert [json.loads(sent["text"])["command"] for sent in page.all("sent")] == ["subscribe", "subscribe"]


async def test_client_reconnects_and_subscribes_again_after_a_lost_link(
    rails: Script, public_server: RunningServer, stream: str
) -> None:
    page = await arrive(rails, public_server)
    await page.subscribe("chat", params=public(stream))

    await page.order("cut", how="reset")
    await page.sees("disconnect", willAttemptReconnect=True)
    await page.order("elapse", seconds=LONG_SECONDS)
    await page.order("poll")
    await page.sees("subscribed", reconnected=True)
    await publish(public_server, stream, "one")

    assert texts(await page.gets("chat", 1)) == ["one"]
    assert (await page.sees("open", socket=2))["protocol"] == "actioncable-v1-json"


async def test_pings_keep_the_connection_from_becoming_stale(rails: Script, public_server: RunningServer, stream: str) -> None:
    page = await arrive(rails, public_server)
    await page.subscribe("chat", params=public(stream))

    await page.order("elapse", seconds=LONG_SECONDS)
    await page.sees("elapsed")
    await page.frame("ping", times=len(page.frames("ping")) + 1)
    await page.order("poll")

    assert (await page.sees("polled"))["stale"] is False
    assert len(page.all("open")) == 1
    assert page.all("disconnect") == page.all("socket_close") == []
    assert all(isinstance(frame["message"], int) for frame in page.frames("ping"))


async def test_page_with_a_token_reads_its_turbo_stream(rails: Script, guarded_server: RunningServer, stream: str) -> None:
    page = await rails.open("page", f"{guarded_server.cable}?{urlencode({'jid': token()})}")
    await page.frame("welcome")
    await page.subscribe("turbo", params={"channel": "Turbo::StreamsChannel", "signed_stream_name": signed(stream)})

    await publish(guarded_server, stream, "<turbo-stream></turbo-stream>", key=BROADCAST_KEY)

    assert texts(await page.gets("turbo", 1)) == ["<turbo-stream></turbo-stream>"]


async def test_page_without_a_token_gets_reconnect_false(rails: Script, guarded_server: RunningServer, stream: str) -> None:
    page = await rails.open("page", guarded_server.cable)
    await page.order("subscribe", channel="chat", params=public(stream))

    await page.sees("disconnect", willAttemptReconnect=False)

    first, *others = page.frames()
    assert first == {"type": "disconnect", "reason": "unauthorized", "reconnect": False}
    assert all(frame == first for frame in others)  # to subscribe, Rails connects again if the first connection is closed

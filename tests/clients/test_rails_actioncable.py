"""`@rails/actioncable`, the client that comes with Rails, on the base protocol."""

import json
from urllib.parse import urlencode

import pytest

from tests.clients.credentials import BROADCAST_KEY, SECRET, signed, token
from tests.clients.publishers import publish
from tests.clients.script import Client, Script, texts
from tests.server import RunningServer, running_server

pytestmark = pytest.mark.needs_node


async def arrive(script: Script, server: RunningServer) -> Client:
    """A page whose cable is open; pings come every second and two missed ones make it stale, as 3 and 6 do in production."""
    client = await script.open("page", f"{server.cable}?pi=1", staleAfter=2)
    await client.frame("welcome")
    return client


def public(stream: str) -> dict[str, str]:
    return {"channel": "$pubsub", "stream_name": stream}


async def test_it_connects_and_finds_its_subprotocol_echoed(rails: Script, public_server: RunningServer) -> None:
    page = await arrive(rails, public_server)

    assert (await page.sees("open"))["protocol"] == "actioncable-v1-json"


async def test_a_confirmed_subscription_receives_what_is_broadcast_in_order(
    rails: Script, public_server: RunningServer, stream: str
) -> None:
    page = await arrive(rails, public_server)
    await page.subscribe("chat", params=public(stream))

    await publish(public_server, stream, {"text": "one"}, ["two"], "three", 4)

    assert texts(await page.gets("chat", 4)) == [{"text": "one"}, ["two"], "three", 4]
    assert page.all("subscribed") == [{"client": "page", "channel": "chat", "event": "subscribed", "reconnected": False}]


async def test_a_channel_that_nobody_serves_is_rejected(rails: Script, public_server: RunningServer) -> None:
    page = await arrive(rails, public_server)

    await page.order("subscribe", channel="unknown", params={"channel": "UnknownChannel"})

    await page.sees("rejected", channel="unknown")
    assert page.all("subscribed") == []


async def test_after_an_unsubscribe_nothing_more_arrives(rails: Script, public_server: RunningServer, stream: str) -> None:
    page = await arrive(rails, public_server)
    for name in ("left", "kept"):
        await page.subscribe(name, params=public(f"{stream}/{name}"))
        await publish(public_server, f"{stream}/{name}", "one")
        await page.gets(name, 1)

    await page.order("unsubscribe", channel="left")
    await page.subscribe("later", params=public(f"{stream}/later"))  # its confirmation comes after the unsubscribe is done
    await publish(public_server, f"{stream}/left", "two")
    await publish(public_server, f"{stream}/kept", "two")

    await page.gets("kept", 2)
    told = [frame["message"] for frame in page.frames() if frame.get("stream_id") == f"{stream}/left"]
    assert told == ["one"]


async def test_a_repeated_subscribe_is_confirmed_again_and_delivers_each_message_once(
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


async def test_after_a_lost_link_its_monitor_brings_it_back_and_it_subscribes_again(
    rails: Script, public_server: RunningServer, stream: str
) -> None:
    page = await arrive(rails, public_server)
    await page.subscribe("chat", params=public(stream))

    await page.order("cut", how="reset")
    await page.sees("disconnect", willAttemptReconnect=True)
    await page.sees("subscribed", reconnected=True)
    await publish(public_server, stream, "one")

    assert texts(await page.gets("chat", 1)) == ["one"]
    assert (await page.sees("open", socket=2))["protocol"] == "actioncable-v1-json"


async def test_pings_keep_its_monitor_content(rails: Script, public_server: RunningServer, stream: str) -> None:
    page = await arrive(rails, public_server)
    await page.subscribe("chat", params=public(stream))

    await page.frame("ping", times=5)  # its monitor looks at least once in this time, every 2 to 4 seconds

    assert len(page.all("open")) == 1
    assert page.all("disconnect") == page.all("socket_close") == []
    assert all(isinstance(frame["message"], int) for frame in page.frames("ping"))


async def test_a_page_with_a_token_reads_its_turbo_stream(rails: Script, stream: str) -> None:
    with running_server("--secret", SECRET, "--turbo_streams") as server:
        page = await rails.open("page", f"{server.cable}?{urlencode({'jid': token()})}")
        await page.frame("welcome")
        await page.subscribe("turbo", params={"channel": "Turbo::StreamsChannel", "signed_stream_name": signed(stream)})

        await publish(server, stream, "<turbo-stream></turbo-stream>", key=BROADCAST_KEY)

        assert texts(await page.gets("turbo", 1)) == ["<turbo-stream></turbo-stream>"]


async def test_a_page_without_a_token_is_told_not_to_come_back(rails: Script, stream: str) -> None:
    with running_server("--secret", SECRET) as server:
        page = await rails.open("page", server.cable)
        await page.order("subscribe", channel="chat", params=public(stream))

        await page.sees("disconnect", willAttemptReconnect=False)

        assert page.frames() == [{"type": "disconnect", "reason": "unauthorized", "reconnect": False}]

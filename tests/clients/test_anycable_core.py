"""`@anycable/core` on public streams: positions, history by time and by offset, whispers, and exact payloads."""

import asyncio
import json
import time

import pytest

from tests.clients.publishers import broadcast, publish
from tests.clients.script import Script, offsets, texts
from tests.server import RunningServer

pytestmark = pytest.mark.needs_node


async def test_extended_protocol_is_echoed_and_welcome_has_the_sid(anycable: Script, public_server: RunningServer) -> None:
    alice = await anycable.connect("alice", public_server.cable)

    opened, connected, welcome = await alice.sees("open"), await alice.sees("connect"), await alice.frame("welcome")

    assert opened["protocol"] == "actioncable-v1-ext-json"
    assert connected["restored"] is False
    assert len(connected["sid"]) >= 22  # 128 bits do not fit into fewer URL-safe characters
    assert welcome == {"type": "welcome", "sid": connected["sid"]}


async def test_messages_of_a_public_stream_have_consecutive_offsets(
    anycable: Script, public_server: RunningServer, stream: str
) -> None:
    alice = await anycable.connect("alice", public_server.cable)
    await alice.subscribe("chat", stream=stream)

    await publish(public_server, stream, {"text": "one"}, {"text": "two"}, {"text": "three"})
    received = await alice.gets("chat", 3)

    assert texts(received) == [{"text": "one"}, {"text": "two"}, {"text": "three"}]
    assert offsets(received) == [1, 2, 3]
    assert {event["meta"]["stream"] for event in received} == {stream}
    assert len({event["meta"]["epoch"] for event in received}) == 1


async def test_batch_arrives_in_order(anycable: Script, public_server: RunningServer, stream: str) -> None:
    alice = await anycable.connect("alice", public_server.cable)
    await alice.subscribe("chat", stream=stream)

    await broadcast(public_server, [{"stream": stream, "data": str(n)} for n in range(1, 51)])

    assert offsets(await alice.gets("chat", 50)) == list(range(1, 51))


async def test_history_since_a_time_before_the_messages_has_them(
    anycable: Script, public_server: RunningServer, stream: str
) -> None:
    await publish(public_server, stream, "one", "two")
    alice = await anycable.connect("alice", public_server.cable, since=int(time.time()) - 60)

    await alice.subscribe("chat", stream=stream)
    await alice.frame("confirm_history")
    await publish(public_server, stream, "three")

    assert texts(await alice.gets("chat", 3)) == ["one", "two", "three"]
    kinds = [frame.get("type", frame.get("offset")) for frame in alice.frames() if frame.get("type") != "ping"]
    assert kinds == ["welcome", "confirm_subscription", 1, 2, "confirm_history", 3]


async def test_history_since_a_later_time_has_no_older_messages(
    anycable: Script, public_server: RunningServer, stream: str
) -> None:
    await publish(public_server, stream, "one", "two")
    alice = await anycable.connect("alice", public_server.cable, since=int(time.time()) + 60)

    await alice.subscribe("chat", stream=stream)
    await alice.frame("confirm_history")
    await publish(public_server, stream, "three")

    assert texts(await alice.gets("chat", 1)) == ["three"]


async def test_client_without_a_history_request_starts_live(
    anycable: Script, public_server: RunningServer, stream: str
) -> None:
    await publish(public_server, stream, "one", "two")
    alice = await anycable.connect("alice", public_server.cable, since=None)

    await alice.subscribe("chat", stream=stream)
    await publish(public_server, stream, "three")

    assert offsets(await alice.gets("chat", 1)) == [3]
    assert alice.frames("confirm_history") == []


async def test_second_subscribe_resumes_after_the_last_offset(
    anycable: Script, public_server: RunningServer, stream: str
) -> None:
    alice = await anycable.connect("alice", public_server.cable, since=int(time.time()) - 60)
    await alice.subscribe("chat", stream=stream)
    await publish(public_server, stream, "one", "two")
    await alice.gets("chat", 2)

    await alice.unsubscribe("chat", fence=f"{stream}/fence")
    await publish(public_server, stream, "three", "four")
    await alice.subscribe("chat again", stream=stream)

    assert texts(await alice.gets("chat again", 2)) == ["three", "four"]
    assert texts(alice.all("message", channel="chat")) == ["one", "two"]
    asked = json.loads(alice.all("sent")[-1]["text"])
    assert asked["history"]["streams"][stream]["offset"] == 2


async def test_clients_that_join_during_publishing_get_every_message_once_in_order(
    anycable: Script, public_server: RunningServer, stream: str
) -> None:
    total, names = 150, [f"client-{n}" for n in range(6)]
    publishing = asyncio.create_task(publish(public_server, stream, *range(1, total + 1)))

    clients = []
    for name in names:
        # Not yet connected: a ping before the subscribe would move the time of the history request.
        client = await anycable.open(name, public_server.cable, since=int(time.time()) - 60)
        await client.subscribe("chat", stream=stream)
        clients.append(client)
    await publishing

    for client in clients:
        assert offsets(await client.gets("chat", total)) == list(range(1, total + 1))


async def test_whisper_reaches_the_other_clients_only(anycable: Script, public_server: RunningServer, stream: str) -> None:
    alice, bob, carol = [await anycable.connect(name, public_server.cable) for name in ("alice", "bob", "carol")]
    for client in (alice, bob, carol):
        await client.subscribe("chat", stream=stream)

    await alice.order("whisper", channel="chat", data={"typing": "alice"})
    for client in (bob, carol):
        assert texts(await client.gets("chat", 1)) == [{"typing": "alice"}]
    await publish(public_server, stream, "after the whisper")

    assert texts(await alice.gets("chat", 1)) == ["after the whisper"]
    whispered, published = await bob.gets("chat", 2)
    assert "meta" not in whispered
    assert published["meta"]["offset"] == 1  # a whisper takes no place in the stream


async def test_excluded_session_gets_a_message_neither_live_nor_replayed(
    anycable: Script, public_server: RunningServer, stream: str
) -> None:
    alice, bob = [await anycable.connect(name, public_server.cable) for name in ("alice", "bob")]
    for client in (alice, bob):
        await client.subscribe("chat", stream=stream)
    excluded = (await alice.sees("connect"))["sid"]

    await publish(public_server, stream, "one")
    await publish(public_server, stream, "two", exclude_socket=excluded)
    await publish(public_server, stream, "three")

    assert texts(await bob.gets("chat", 3)) == ["one", "two", "three"]
    assert texts(await alice.gets("chat", 2)) == ["one", "three"]

    await alice.unsubscribe("chat", fence=f"{stream}/fence")
    await publish(public_server, stream, "four", exclude_socket=excluded)
    await publish(public_server, stream, "five")
    await alice.subscribe("chat again", stream=stream)

    assert texts(await alice.gets("chat again", 1)) == ["five"]


async def test_large_integers_and_unicode_arrive_unchanged(anycable: Script, public_server: RunningServer, stream: str) -> None:
    alice = await anycable.connect("alice", public_server.cable)
    await alice.subscribe("chat", stream=stream)

    sent = {"id": 9007199254740993, "wei": 115792089237316195423570985008687907853269984665640564039457584007913129639935}
    await publish(public_server, stream, sent, {"text": "Seil · 綱 · 🪢 <&>"})
    await alice.gets("chat", 2)

    numbers, words = [frame["message"] for frame in alice.frames() if "offset" in frame]
    assert numbers == sent
    assert words == {"text": "Seil · 綱 · 🪢 <&>"}


async def test_base_protocol_delivers_messages(anycable: Script, public_server: RunningServer, stream: str) -> None:
    alice = await anycable.connect("alice", public_server.cable, protocol="actioncable-v1-json")
    await alice.subscribe("chat", stream=stream)

    await publish(public_server, stream, "one", "two")

    assert texts(await alice.gets("chat", 2)) == ["one", "two"]
    assert (await alice.sees("open"))["protocol"] == "actioncable-v1-json"


async def test_unknown_channel_is_rejected_and_other_subscriptions_stay(
    anycable: Script, public_server: RunningServer, stream: str
) -> None:
    alice = await anycable.connect("alice", public_server.cable)
    await alice.subscribe("chat", stream=stream)

    await alice.order("subscribe", channel="unknown", kind="UnknownChannel", params={"id": 42})
    closed = await alice.sees("channel_close", channel="unknown")
    await publish(public_server, stream, "still here")

    assert closed["error"] == "SubscriptionRejectedError"
    assert texts(await alice.gets("chat", 1)) == ["still here"]

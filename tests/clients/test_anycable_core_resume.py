"""`@anycable/core` after a lost link: the session is restored, no message is missed, repeated or out of order."""

import asyncio
import json
import time
from urllib.parse import urlencode

import pytest

from tests.clients.publishers import publish
from tests.clients.script import Script, offsets, texts
from tests.server import RunningServer, running_server

pytestmark = pytest.mark.needs_node


@pytest.mark.parametrize("how", ["fin", "reset", "stall"])
async def test_session_is_restored_with_the_messages_of_the_meantime(
    anycable: Script, public_server: RunningServer, stream: str, how: str
) -> None:
    alice = await anycable.connect("alice", public_server.cable)
    for name in ("chat", "news"):
        await alice.subscribe(name, stream=f"{stream}/{name}")
        await publish(public_server, f"{stream}/{name}", "one", "two")
        await alice.gets(name, 2)

    await alice.lose(how)
    for name in ("chat", "news"):
        await publish(public_server, f"{stream}/{name}", "three", "four")
    restored = await alice.come_back()
    for name in ("chat", "news"):
        await publish(public_server, f"{stream}/{name}", "five")

    assert (restored["reconnect"], restored["restored"]) == (True, True)
    for name in ("chat", "news"):
        received = await alice.gets(name, 5)
        assert texts(received) == ["one", "two", "three", "four", "five"]
        assert offsets(received) == [1, 2, 3, 4, 5]
        assert len(alice.all("subscribed", channel=name, restored=True)) == 1


async def test_old_connection_of_a_restored_session_is_closed(
    anycable: Script, public_server: RunningServer, stream: str
) -> None:
    alice = await anycable.connect("alice", public_server.cable)
    await alice.subscribe("chat", stream=stream)

    await alice.lose("stall")
    await alice.come_back()

    assert (await alice.sees("socket_close", socket=1))["code"] != 1006  # with a close frame, not by a broken link


async def test_client_with_many_lost_links_misses_no_message(
    anycable: Script, public_server: RunningServer, stream: str
) -> None:
    alice = await anycable.connect("alice", public_server.cable, reconnectAfter=20)
    await alice.subscribe("chat", stream=stream)
    enough = asyncio.Event()

    async def publish_on() -> int:
        count = 0
        while not enough.is_set():
            count += 1
            await publish(public_server, stream, count)
        return count

    publishing = asyncio.create_task(publish_on())
    try:
        for times, how in enumerate(["fin", "reset", "stall"] * 3, start=1):
            await alice.gets("chat", len(alice.all("message", channel="chat")) + 5)
            await alice.lose(how)
            await alice.sees("connect", restored=True, times=times)
    finally:
        enough.set()
        total = await publishing

    received = await alice.gets("chat", total)
    assert offsets(received) == texts(received) == list(range(1, total + 1))
    assert len(alice.all("connect")) == 1 + 9
    assert alice.frames("reject_history") == []


async def test_restored_welcome_lists_the_remaining_subscriptions(
    anycable: Script, public_server: RunningServer, stream: str
) -> None:
    alice = await anycable.connect("alice", public_server.cable)
    await alice.subscribe("kept", stream=f"{stream}/kept")
    await alice.subscribe("left", stream=f"{stream}/left")
    await alice.unsubscribe("left", fence=f"{stream}/fence")

    await alice.lose()
    await alice.come_back()

    welcome = await alice.frame("welcome", times=2)
    assert welcome["restored"] is True
    assert {json.loads(identifier)["stream_name"] for identifier in welcome["restored_ids"]} == {
        f"{stream}/kept",
        f"{stream}/fence",
    }


async def test_restored_welcome_without_subscriptions_lists_none(anycable: Script, public_server: RunningServer) -> None:
    alice = await anycable.connect("alice", public_server.cable)

    await alice.lose()
    await alice.come_back()

    assert (await alice.frame("welcome", times=2))["restored_ids"] == []


async def test_sid_restores_only_once(anycable: Script, public_server: RunningServer, stream: str) -> None:
    alice = await anycable.connect("alice", public_server.cable)
    await alice.subscribe("chat", stream=stream)
    sid = (await alice.sees("connect"))["sid"]

    await alice.lose()
    restored = await alice.come_back()
    thief = await anycable.connect("thief", f"{public_server.cable}?{urlencode({'sid': sid})}")

    assert restored["restored"] is True
    assert restored["sid"] != sid
    assert thief.all("connect")[0]["restored"] is False
    await publish(public_server, stream, "one")
    assert texts(await alice.gets("chat", 1)) == ["one"]
    assert [frame for frame in thief.frames() if "offset" in frame] == []


async def test_excluded_message_is_not_replayed_after_a_restore(
    anycable: Script, public_server: RunningServer, stream: str
) -> None:
    alice = await anycable.connect("alice", public_server.cable)
    await alice.subscribe("chat", stream=stream)

    await alice.lose()
    await publish(public_server, stream, "her own", exclude_socket=(await alice.sees("connect"))["sid"])
    await publish(public_server, stream, "of others")
    await alice.come_back()

    assert texts(await alice.gets("chat", 1)) == ["of others"]


async def test_unknown_sid_gives_a_new_session(anycable: Script, public_server: RunningServer, stream: str) -> None:
    alice = await anycable.connect("alice", f"{public_server.cable}?sid=never-heard-of")
    await alice.subscribe("chat", stream=stream)

    await publish(public_server, stream, "one")

    assert alice.all("connect")[0]["restored"] is False
    assert texts(await alice.gets("chat", 1)) == ["one"]


async def test_trimmed_history_is_reported_and_the_kept_messages_arrive(
    anycable: Script, short_history_server: RunningServer, stream: str
) -> None:
    alice = await anycable.connect("alice", short_history_server.cable)
    await alice.subscribe("chat", stream=stream)
    await publish(short_history_server, stream, 1, 2)
    await alice.gets("chat", 2)

    await alice.lose()
    await publish(short_history_server, stream, *range(3, 11))
    await alice.come_back()
    await alice.sees("info", channel="chat", type="history_not_found")
    await publish(short_history_server, stream, 11)

    assert offsets(await alice.gets("chat", 6)) == [1, 2, 8, 9, 10, 11]
    assert len(alice.frames("confirm_history")) == 1  # of the subscribe: each request has one response
    rejected = await alice.frame("reject_history")
    epoch = alice.all("message")[0]["meta"]["epoch"]
    assert rejected["reason"] == "trimmed"
    assert rejected["streams"] == {stream: {"reason": "trimmed", "epoch": epoch, "oldest": 8, "tip": 10}}


async def test_client_resumes_after_the_messages_behind_a_gap(
    anycable: Script, short_history_server: RunningServer, stream: str
) -> None:
    alice = await anycable.connect("alice", short_history_server.cable)
    await alice.subscribe("chat", stream=stream)
    await publish(short_history_server, stream, 1)
    await alice.gets("chat", 1)
    for round in range(2):
        await alice.lose()
        await publish(short_history_server, stream, *range(1, 6))
        await alice.come_back()
        await alice.sees("info", channel="chat", type="history_not_found", times=round + 1)

    assert offsets(await alice.gets("chat", 7)) == [1, 4, 5, 6, 9, 10, 11]


async def test_trimmed_history_by_time_is_confirmed_with_the_reason(
    anycable: Script, short_history_server: RunningServer, stream: str
) -> None:
    await publish(short_history_server, stream, *range(1, 11))
    # Not yet connected: a ping before the subscribe would move the time of the history request.
    alice = await anycable.open("alice", short_history_server.cable, since=int(time.time()) - 3600)
    await alice.subscribe("chat", stream=stream)
    confirmed = await alice.frame("confirm_history")

    assert offsets(await alice.gets("chat", 3)) == [8, 9, 10]
    assert alice.frames("reject_history") == []  # an application that reloads when history is not found would never stop
    assert (confirmed["reason"], confirmed["streams"][stream]["oldest"]) == ("trimmed", 8)


async def test_client_reports_trimmed_history_by_time_if_the_rule_rejects_it(
    anycable: Script, short_history_server: RunningServer, stream: str
) -> None:
    stream = f"complete/{stream}"
    await publish(short_history_server, stream, *range(1, 11))
    since = int(time.time()) - 3600
    alice = await anycable.open("alice", short_history_server.cable, since=since, oneByOne=True)
    await alice.subscribe("chat", stream=stream)
    await alice.sees("info", channel="chat", type="history_not_found")

    assert offsets(await alice.gets("chat", 3)) == [8, 9, 10]
    await publish(short_history_server, stream, 11)
    assert offsets(await alice.gets("chat", 4)) == [8, 9, 10, 11]
    assert alice.frames("confirm_history") == []


async def test_client_reports_what_a_silent_stream_lost_if_the_rule_rejects_it(
    anycable: Script, short_history_server: RunningServer, stream: str
) -> None:
    """It has no position of a stream without a message, and asks by time."""
    stream = f"complete/{stream}"
    alice = await anycable.connect("alice", short_history_server.cable)
    await alice.subscribe("chat", stream=stream)
    await alice.lose()
    await publish(short_history_server, stream, *range(1, 6))
    await alice.come_back()
    await alice.sees("info", channel="chat", type="history_not_found")
    assert offsets(await alice.gets("chat", 3)) == [3, 4, 5]


async def test_resume_right_before_the_oldest_kept_message_has_no_gap(
    anycable: Script, short_history_server: RunningServer, stream: str
) -> None:
    alice = await anycable.connect("alice", short_history_server.cable)
    await alice.subscribe("chat", stream=stream)
    await publish(short_history_server, stream, 1, 2)
    await alice.gets("chat", 2)

    await alice.lose()
    await publish(short_history_server, stream, 3, 4, 5)
    await alice.come_back()

    assert offsets(await alice.gets("chat", 5)) == [1, 2, 3, 4, 5]


async def test_client_reconnects_after_a_restart_and_gets_an_epoch_change(anycable: Script, stream: str) -> None:
    with running_server("--public") as server:
        alice = await anycable.connect("alice", server.cable, reconnectAfter=100, since=int(time.time()) - 60)
        await alice.subscribe("chat", stream=stream)
        await publish(server, stream, "before")
        await alice.gets("chat", 1)
        await asyncio.to_thread(server.stop)
        lost = await alice.sees("disconnect")

    with running_server("--public", "--port", str(server.port)) as server:
        back = await alice.sees("connect", times=2)
        await alice.sees("info", channel="chat", type="history_not_found")
        await publish(server, stream, "after")

        assert lost["reason"] == "server_restart"
        assert (await alice.frame("disconnect")) == {"type": "disconnect", "reason": "server_restart", "reconnect": True}
        assert (await alice.sees("socket_close"))["code"] == 1001
        assert (back["reconnect"], back["restored"]) == (True, False)
        assert (await alice.frame("reject_history"))["reason"] == "epoch_changed"
        assert texts(await alice.gets("chat", 2)) == ["before", "after"]

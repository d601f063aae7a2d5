"""`@anycable/core` after its link was lost: the session is restored, nothing is missed, repeated or out of order."""

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
async def test_a_lost_link_is_restored_with_all_that_was_published_meanwhile(
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


async def test_the_connection_that_a_restored_session_left_behind_is_ended(
    anycable: Script, public_server: RunningServer, stream: str
) -> None:
    alice = await anycable.connect("alice", public_server.cable)
    await alice.subscribe("chat", stream=stream)

    await alice.lose("stall")
    await alice.come_back()

    assert (await alice.sees("socket_close", socket=1))["code"] != 1006  # with a close frame, not by a broken link


async def test_a_client_that_is_cut_again_and_again_while_others_publish_misses_nothing(
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


async def test_a_restored_welcome_names_what_is_still_subscribed(
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


async def test_a_restored_session_without_subscriptions_says_so(anycable: Script, public_server: RunningServer) -> None:
    alice = await anycable.connect("alice", public_server.cable)

    await alice.lose()
    await alice.come_back()

    assert (await alice.frame("welcome", times=2))["restored_ids"] == []


async def test_a_sid_restores_once(anycable: Script, public_server: RunningServer, stream: str) -> None:
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


async def test_a_message_that_excludes_a_session_is_not_replayed_to_it_after_its_restore(
    anycable: Script, public_server: RunningServer, stream: str
) -> None:
    alice = await anycable.connect("alice", public_server.cable)
    await alice.subscribe("chat", stream=stream)

    await alice.lose()
    await publish(public_server, stream, "her own", exclude_socket=(await alice.sees("connect"))["sid"])
    await publish(public_server, stream, "of others")
    await alice.come_back()

    assert texts(await alice.gets("chat", 1)) == ["of others"]


async def test_an_unknown_sid_gives_a_new_session_that_works(
    anycable: Script, public_server: RunningServer, stream: str
) -> None:
    alice = await anycable.connect("alice", f"{public_server.cable}?sid=never-heard-of")
    await alice.subscribe("chat", stream=stream)

    await publish(public_server, stream, "one")

    assert alice.all("connect")[0]["restored"] is False
    assert texts(await alice.gets("chat", 1)) == ["one"]


async def test_history_that_is_too_old_is_said_and_what_is_kept_of_it_comes(anycable: Script, stream: str) -> None:
    with running_server("--public", "--history_limit", "3") as server:
        alice = await anycable.connect("alice", server.cable)
        await alice.subscribe("chat", stream=stream)
        await publish(server, stream, 1, 2)
        await alice.gets("chat", 2)

        await alice.lose()
        await publish(server, stream, *range(3, 11))
        await alice.come_back()
        await alice.sees("info", channel="chat", type="history_not_found")
        await publish(server, stream, 11)

        assert offsets(await alice.gets("chat", 6)) == [1, 2, 8, 9, 10, 11]
        assert len(alice.frames("confirm_history")) == 1  # that of the subscribe: each request has one answer
        rejected = await alice.frame("reject_history")
        epoch = alice.all("message")[0]["meta"]["epoch"]
        assert rejected["reason"] == "trimmed"
        assert rejected["streams"] == {stream: {"reason": "trimmed", "epoch": epoch, "oldest": 8, "tip": 10}}


async def test_a_client_goes_on_from_what_came_after_a_gap(anycable: Script, stream: str) -> None:
    with running_server("--public", "--history_limit", "3") as server:
        alice = await anycable.connect("alice", server.cable)
        await alice.subscribe("chat", stream=stream)
        await publish(server, stream, 1)
        await alice.gets("chat", 1)
        for round in range(2):
            await alice.lose()
            await publish(server, stream, *range(1, 6))
            await alice.come_back()
            await alice.sees("info", channel="chat", type="history_not_found", times=round + 1)

        assert offsets(await alice.gets("chat", 7)) == [1, 4, 5, 6, 9, 10, 11]


async def test_history_by_time_that_is_not_kept_any_more_is_confirmed_and_said(anycable: Script, stream: str) -> None:
    with running_server("--public", "--history_limit", "3") as server:
        await publish(server, stream, *range(1, 11))
        # Not yet connected: a ping that comes before the subscribe would move the time that the library asks from.
        alice = await anycable.open("alice", server.cable, since=int(time.time()) - 3600)
        await alice.subscribe("chat", stream=stream)
        confirmed = await alice.frame("confirm_history")

        assert offsets(await alice.gets("chat", 3)) == [8, 9, 10]
        assert alice.frames("reject_history") == []  # an application that reloads when history is not found would never stop
        assert (confirmed["reason"], confirmed["streams"][stream]["oldest"]) == ("trimmed", 8)


async def test_the_last_offset_before_the_oldest_kept_one_still_joins_up(anycable: Script, stream: str) -> None:
    with running_server("--public", "--history_limit", "3") as server:
        alice = await anycable.connect("alice", server.cable)
        await alice.subscribe("chat", stream=stream)
        await publish(server, stream, 1, 2)
        await alice.gets("chat", 2)

        await alice.lose()
        await publish(server, stream, 3, 4, 5)
        await alice.come_back()

        assert offsets(await alice.gets("chat", 5)) == [1, 2, 3, 4, 5]


async def test_after_a_restart_the_client_comes_back_and_hears_that_the_past_is_gone(anycable: Script, stream: str) -> None:
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

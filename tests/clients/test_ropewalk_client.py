"""The client that servers serve as `/ropewalk.js`, in Node: where subscriptions begin, gaps, loops, presence, errors."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.credentials import BROADCAST_KEY, SECRET, signed, token
from tests.clients.publishers import broadcast, publish
from tests.clients.script import Client, Event, Script
from tests.server import RunningServer, running_server

pytestmark = pytest.mark.needs_node


async def connect(script: Script, name: str, server: RunningServer, **args: object) -> Client:
    await script.order("open", name, url=server.url, **args)
    client = Client(script, name)
    await client.sees("status", state="online")
    return client


async def subscribe(client: Client, channel: str, **args: object) -> None:
    """Subscribe and wait until all history has come."""
    times = len(client.all("subscription", channel=channel, state="live")) + 1
    await client.order("subscribe", channel=channel, **args)
    await client.sees("subscription", channel=channel, state="live", times=times)


async def cut(client: Client, how: str = "reset") -> None:
    times = len(client.all("status", state="waiting")) + 1
    await client.order("cut", how=how)
    await client.sees("status", state="waiting", times=times)


async def live_again(client: Client, channel: str, times: int) -> Event:
    return await client.sees("subscription", channel=channel, state="live", times=times)


def data(events: list[Event]) -> list[Any]:
    return [event.get("data") for event in events]


def offsets(events: list[Event]) -> list[int]:
    return [event["position"]["offset"] for event in events]


def gaps(client: Client, channel: str) -> list[Event]:
    return [event["gap"] for event in client.all("gap", channel=channel)]


async def items(client: Client, channel: str, count: int) -> list[Event]:
    await client.sees("item", times=count, channel=channel)
    return client.all("item", channel=channel)


# --- where a subscription begins --------------------------------------------------------------------------------------


STARTS: dict[str, tuple[object, list[int]]] = {
    "live": ("live", []),
    "default": (None, []),
    "start": ("start", [1, 2, 3, 4, 5]),
    "last two": ({"last": 2}, [4, 5]),
    "last of more than there are": ({"last": 9}, [1, 2, 3, 4, 5]),
    "since a time": ({"since": 1_000_000}, [1, 2, 3, 4, 5]),
}


async def test_each_subscription_has_its_own_start(ropewalk: Script, public_server: RunningServer, stream: str) -> None:
    await publish(public_server, stream, *range(1, 6))
    ada = await connect(ropewalk, "ada", public_server)
    for name, (start, _) in STARTS.items():
        await subscribe(ada, name, stream=stream, **({} if start is None else {"from": start}))
    await publish(public_server, stream, 6)
    for name, (_, replayed) in STARTS.items():
        received = await ada.gets(name, len(replayed) + 1)
        assert (name, offsets(received), data(received)) == (name, [*replayed, 6], [*replayed, 6])
        assert [event["replayed"] for event in received] == [True] * len(replayed) + [False]
        assert gaps(ada, name) == []


async def test_a_subscription_begins_behind_a_position(ropewalk: Script, public_server: RunningServer, stream: str) -> None:
    await publish(public_server, stream, *range(1, 6))
    ada = await connect(ropewalk, "ada", public_server)
    await subscribe(ada, "all", stream=stream, **{"from": "start"})
    third = (await ada.gets("all", 5))[2]["position"]
    await subscribe(ada, "rest", stream=stream, **{"from": third})
    assert offsets(await ada.gets("rest", 2)) == [4, 5]


async def test_a_stream_without_messages_is_live_from_its_first_one(
    ropewalk: Script, public_server: RunningServer, stream: str
) -> None:
    ada = await connect(ropewalk, "ada", public_server)
    for name, start in {"live": "live", "start": "start", "last": {"last": 3}}.items():
        await subscribe(ada, name, stream=stream, **{"from": start})
    await cut(ada)
    await publish(public_server, stream, "one")
    for name in ("live", "start", "last"):
        assert offsets(await ada.gets(name, 1)) == [1]
        assert gaps(ada, name) == []


# --- gaps -------------------------------------------------------------------------------------------------------------


async def test_a_gap_is_an_item_before_the_messages_that_follow_it(
    ropewalk: Script, short_history_server: RunningServer, stream: str
) -> None:
    ada = await connect(ropewalk, "ada", short_history_server)
    await publish(short_history_server, stream, 1)
    await subscribe(ada, "loop", stream=stream, iterate=True, **{"from": "start"})
    await items(ada, "loop", 1)
    await ada.order("block", blocked=True)
    await cut(ada)
    await publish(short_history_server, stream, *range(2, 8))
    await ada.order("block", blocked=False)

    received = await items(ada, "loop", 5)
    assert [event.get("gap", {}).get("reason") or event["data"] for event in received] == [1, "trimmed", 5, 6, 7]
    gap = received[1]["gap"]
    assert (gap["known"]["offset"], gap["position"]["offset"], gap["tip"], gap["missed"]) == (1, 4, 7, 3)
    assert gaps(ada, "loop") == [gap]


@pytest.mark.parametrize("start", ["start", {"last": 5}, {"since": 1_000_000}], ids=str)
async def test_a_trimmed_start_is_a_gap(
    ropewalk: Script, short_history_server: RunningServer, stream: str, start: object
) -> None:
    await publish(short_history_server, stream, *range(1, 7))
    ada = await connect(ropewalk, "ada", short_history_server)
    await subscribe(ada, "chat", stream=stream, **{"from": start})
    assert offsets(await ada.gets("chat", 3)) == [4, 5, 6]
    [gap] = gaps(ada, "chat")
    assert (gap["reason"], gap["position"]["offset"]) == ("trimmed", 3)


async def test_a_restarted_server_without_a_journal_is_a_gap(ropewalk: Script, stream: str) -> None:
    with running_server("--public") as first:
        port = first.port
        ada = await connect(ropewalk, "ada", first)
        await subscribe(ada, "chat", stream=stream)
        await publish(first, stream, "before")
        await ada.gets("chat", 1)
        first.kill()
    with running_server("--public", "--port", str(port)) as second:
        await live_again(ada, "chat", 2)
        [gap] = gaps(ada, "chat")
        assert (gap["reason"], gap.get("position"), gap["known"]["offset"]) == ("epoch_changed", None, 1)
        await publish(second, stream, "after", "and more")
        received = await ada.gets("chat", 3)
        assert (data(received), offsets(received)) == (["before", "after", "and more"], [1, 1, 2])
        assert len(gaps(ada, "chat")) == 1


# --- reconnects -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fin", "reset"])
async def test_a_restored_session_gets_the_messages_of_the_meantime(
    ropewalk: Script, public_server: RunningServer, stream: str, how: str
) -> None:
    ada = await connect(ropewalk, "ada", public_server)
    for name in ("a", "b"):
        await subscribe(ada, name, stream=f"{stream}/{name}")
        await publish(public_server, f"{stream}/{name}", 1)
    await cut(ada, how)
    for name in ("a", "b"):
        await publish(public_server, f"{stream}/{name}", 2)
        await live_again(ada, name, 2)
        await publish(public_server, f"{stream}/{name}", 3)
        assert offsets(await ada.gets(name, 3)) == [1, 2, 3]
    assert (await ada.sees("status", state="online", times=2))["restored"] is True


async def test_a_silent_link_is_detected(ropewalk: Script, public_server: RunningServer, stream: str) -> None:
    ada = await connect(ropewalk, "ada", public_server, options={"pingInterval": 1, "minDelay": 20})
    await subscribe(ada, "chat", stream=stream)
    await ada.order("cut", how="silent")
    await publish(public_server, stream, 1)
    assert "no sign of life" in (await ada.sees("status", state="waiting"))["reason"]
    assert offsets(await ada.gets("chat", 1)) == [1]


async def test_a_disconnected_client_stays_offline_until_reconnect(
    ropewalk: Script, public_server: RunningServer, stream: str
) -> None:
    ada = await connect(ropewalk, "ada", public_server)
    await subscribe(ada, "chat", stream=stream)
    await ada.order("disconnect")
    await ada.sees("status", state="offline")
    await publish(public_server, stream, 1)
    assert ada.all("message") == []
    await ada.order("reconnect")
    assert offsets(await ada.gets("chat", 1)) == [1]


async def test_a_new_subscription_continues_at_a_kept_position(
    ropewalk: Script, public_server: RunningServer, stream: str
) -> None:
    for number in range(3):
        ada = await connect(ropewalk, f"page{number}", public_server)
        await subscribe(ada, "chat", stream=stream, resume=stream)
        await publish(public_server, stream, f"{number} live")
        received = await ada.gets("chat", 1 + (number > 0))
        assert data(received) == ([] if number == 0 else [f"{number - 1} away"]) + [f"{number} live"]
        await ada.order("close_client")
        await ada.sees("status", state="closed")
        await publish(public_server, stream, f"{number} away")


async def test_a_kept_position_is_behind_what_the_loop_has_handled(
    ropewalk: Script, public_server: RunningServer, stream: str
) -> None:
    """An item counts as handled when the loop asks for the next one, or ends."""
    await publish(public_server, stream, *range(1, 6))
    ada = await connect(ropewalk, "ada", public_server)
    await subscribe(ada, "first", stream=stream, resume=stream, iterate=2, **{"from": "start"})
    await ada.sees("loop_left")
    await ada.order("close", channel="first")
    await subscribe(ada, "second", stream=stream, resume=stream)
    assert offsets(await ada.gets("second", 3)) == [3, 4, 5]


# --- loops and handlers -----------------------------------------------------------------------------------------------


async def test_messages_wait_for_the_first_reader(ropewalk: Script, public_server: RunningServer, stream: str) -> None:
    await publish(public_server, stream, 1, 2)
    ada = await connect(ropewalk, "ada", public_server)
    for channel in ("loop", "handlers"):
        await subscribe(ada, channel, stream=stream, then=True, **{"from": "start"})
    await ada.order("loop", channel="loop")
    await ada.order("watch", channel="handlers", only=["message"])
    await publish(public_server, stream, 3)
    assert offsets(await items(ada, "loop", 3)) == [1, 2, 3]
    assert offsets(await ada.gets("handlers", 3)) == [1, 2, 3]


async def test_unread_messages_beyond_the_queue_are_a_gap(ropewalk: Script, public_server: RunningServer, stream: str) -> None:
    await publish(public_server, stream, *range(1, 11))
    ada = await connect(ropewalk, "ada", public_server)
    await subscribe(ada, "chat", stream=stream, then=True, queue=4, **{"from": "start"})
    await ada.order("loop", channel="chat")
    first, *rest = await items(ada, "chat", 3)
    assert (first["gap"]["reason"], offsets([first, *rest])) == ("unread", [8, 9, 10])


async def test_a_slow_loop_pauses_its_subscription_and_misses_nothing(
    ropewalk: Script, public_server: RunningServer, stream: str
) -> None:
    ada = await connect(ropewalk, "ada", public_server)
    await subscribe(ada, "slow", stream=stream, iterate=1, queue=10)
    await subscribe(ada, "fast", stream=stream)
    await publish(public_server, stream, *range(1, 51))
    await ada.gets("fast", 50)
    assert len(ada.all("subscription", channel="slow", state="paused")) == 1
    await ada.order("loop", channel="slow")
    assert offsets(await items(ada, "slow", 50)) == list(range(1, 51))
    assert gaps(ada, "slow") == []


async def test_a_handler_that_throws_stops_nothing(ropewalk: Script, public_server: RunningServer, stream: str) -> None:
    ada = await connect(ropewalk, "ada", public_server)
    await subscribe(ada, "chat", stream=stream, throws=True)
    await publish(public_server, stream, 1, 2, 3)
    assert offsets(await ada.gets("chat", 3)) == [1, 2, 3]


async def test_a_loop_ends_when_the_subscription_is_closed(ropewalk: Script, public_server: RunningServer, stream: str) -> None:
    ada = await connect(ropewalk, "ada", public_server)
    for _ in range(3):  # the same identifier again, also while the server has not confirmed the first
        await ada.order("subscribe", channel="chat", stream=stream, iterate=True)
        await ada.order("close", channel="chat")
    await ada.sees("loop_done", times=3)
    await subscribe(ada, "chat", stream=stream)
    await publish(public_server, stream, "only this")
    assert data(await ada.gets("chat", 1)) == ["only this"]


# --- presence, whispers, transient messages ---------------------------------------------------------------------------


async def test_members_are_kept_up_to_date(ropewalk: Script, public_server: RunningServer, stream: str) -> None:
    ada, bo = [await connect(ropewalk, name, public_server) for name in ("ada", "bo")]
    await ada.order("subscribe", channel="room", stream=stream, only=["status"])
    await ada.order("join", channel="room", id="1", info={"name": "Ada"})
    await bo.order("subscribe", channel="room", stream=stream, only=["presence"])
    await bo.order("join", channel="room", id="2")

    async def members(*wanted: str) -> None:
        def now() -> list[str]:
            changes = bo.all("presence", channel="room")
            return [member["id"] for member in changes[-1]["members"]] if changes else []

        await ropewalk.until(lambda: sorted(now()) == list(wanted), f"members {wanted}")

    await members("1", "2")
    await cut(bo)
    await members("1", "2")
    await ada.order("close", channel="room")
    await members("2")
    await bo.order("leave", channel="room")
    await members()


async def test_members_of_many_pages_are_all_listed(ropewalk: Script, public_server: RunningServer, stream: str) -> None:
    info = "x" * 3000
    for number in range(60):
        ada = await connect(ropewalk, f"member{number}", public_server)
        await ada.order("subscribe", channel="room", stream=stream, only=["status"])
        await ada.order("join", channel="room", id=str(number), info=info)
    await ada.order("watch", channel="room", only=["presence"])

    def seen() -> set[str]:
        return {member["id"] for event in ada.all("presence") for member in event["members"]}

    await ropewalk.until(lambda: seen() == {str(number) for number in range(60)}, "all members")


async def test_whispers_reach_the_others_without_a_position(
    ropewalk: Script, public_server: RunningServer, stream: str
) -> None:
    ada, bo = [await connect(ropewalk, name, public_server) for name in ("ada", "bo")]
    for client in (ada, bo):
        await subscribe(client, "room", stream=stream)
    await ada.order("whisper", channel="room", data={"x": 1})
    await ada.sees("whispered")
    assert (await bo.sees("transient"))["data"] == {"x": 1}
    await publish(public_server, stream, "gone", transient=True)
    assert (await ada.sees("transient"))["data"] == "gone"
    assert bo.all("message") == []
    await ada.order("disconnect")
    await ada.order("whisper", channel="room", data=2)
    assert (await ada.sees("whisper_failed"))["code"] == "offline"


# --- errors and tokens ------------------------------------------------------------------------------------------------


async def test_a_rejected_subscription_is_an_error_with_its_name(ropewalk: Script, guarded_server: RunningServer) -> None:
    ada = await connect(ropewalk, "ada", guarded_server, tokens=[token()])
    await ada.order("subscribe", channel="handlers", stream="private")
    await ada.order("subscribe", channel="loop", stream="private", iterate=True)
    rejected = {"code": "rejected", "text": "subscription to private rejected"}
    assert rejected.items() <= (await ada.sees("error", channel="handlers")).items()
    assert rejected.items() <= (await ada.sees("loop_failed", channel="loop")).items()
    await subscribe(ada, "signed", stream={"signed": signed("news")}, **{"from": "start"})
    await publish(guarded_server, "news", "hello", key=BROADCAST_KEY)
    assert (await ada.gets("signed", 1))[0]["stream"] == "news"


async def test_a_refused_token_is_replaced_once(ropewalk: Script, guarded_server: RunningServer) -> None:
    ada = await connect(ropewalk, "ada", guarded_server, tokens=["stale", token()])
    assert ada.all("status", state="online")[-1]["asked"] == 2


async def test_two_refused_tokens_end_the_client_with_the_reason(ropewalk: Script, guarded_server: RunningServer) -> None:
    first = {"channel": "loop", "stream": "any", "iterate": True}
    await ropewalk.order("open", "ada", url=guarded_server.url, tokens=["stale", "stale too", token()], first=first)
    ada = Client(ropewalk, "ada")
    assert (await ada.sees("client_error"))["code"] == "unauthorized"
    assert (await ada.sees("loop_failed"))["code"] == "unauthorized"
    assert (await ada.sees("status", state="closed"))["reason"] == "unauthorized"


async def test_an_expired_token_is_replaced_and_nothing_is_missed(
    ropewalk: Script, guarded_server: RunningServer, stream: str
) -> None:
    ada = await connect(ropewalk, "ada", guarded_server, tokens=[token(expires_in=3), token()])
    await subscribe(ada, "chat", stream={"signed": signed(stream)})
    await publish(guarded_server, stream, 1, key=BROADCAST_KEY)
    await ada.sees("status", state="online", times=2)
    await publish(guarded_server, stream, 2, key=BROADCAST_KEY)
    assert offsets(await ada.gets("chat", 2)) == [1, 2]


async def test_a_client_that_the_application_disconnects_ends_with_the_reason(
    ropewalk: Script, guarded_server: RunningServer
) -> None:
    ada = await connect(ropewalk, "ada", guarded_server, tokens=[token("user/9")])
    await broadcast(
        guarded_server, {"command": "disconnect", "payload": {"identifier": "user/9", "reconnect": False}}, BROADCAST_KEY
    )
    assert (await ada.sees("client_error"))["code"] == "remote"


# --- server-sent events -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def events_server() -> Iterator[RunningServer]:
    with running_server("--secret", SECRET, "--public_streams", "--sse", "--history_limit", "5") as server:
        yield server


async def test_where_websockets_are_blocked_messages_come_as_events(
    ropewalk: Script, events_server: RunningServer, stream: str
) -> None:
    await publish(events_server, stream, *range(1, 8), key=BROADCAST_KEY)
    await ropewalk.order("open", "ada", url=events_server.url, blocked=True, tokens=[token()])
    ada = Client(ropewalk, "ada")
    for name, start in {"live": "live", "start": "start", "last": {"last": 2}}.items():
        await ada.order("subscribe", channel=name, stream=stream, **{"from": start})
    await ada.sees("status", state="online", transport="events")
    for name in ("live", "start", "last"):
        await ada.sees("subscription", channel=name, state="live")
    await asyncio.sleep(0)
    await publish(events_server, stream, 8, key=BROADCAST_KEY)
    assert offsets(await ada.gets("live", 1)) == [8]
    assert offsets(await ada.gets("start", 6)) == [3, 4, 5, 6, 7, 8]
    assert offsets(await ada.gets("last", 3)) == [6, 7, 8]
    assert [gap["reason"] for gap in gaps(ada, "start")] == ["trimmed"]

    await subscribe(ada, "late", stream=stream, **{"from": "start"})
    await publish(events_server, stream, 9, key=BROADCAST_KEY)
    assert offsets(await ada.gets("late", 6)) == [4, 5, 6, 7, 8, 9]
    assert offsets(await ada.gets("live", 2)) == [8, 9]

    await ada.order("whisper", channel="live", data=1)
    assert (await ada.sees("whisper_failed"))["code"] == "read_only"
    await ada.order("join", channel="live", id="1")
    assert (await ada.sees("join_failed"))["code"] == "read_only"


async def test_a_subscription_rejected_over_events_leaves_the_others(
    ropewalk: Script, events_server: RunningServer, stream: str
) -> None:
    await ropewalk.order("open", "ada", url=events_server.url, blocked=True, tokens=[token()])
    ada = Client(ropewalk, "ada")
    await ada.order("subscribe", channel="forged", stream={"signed": "forged"})
    await ada.order("subscribe", channel="fine", stream=stream)
    assert (await ada.sees("error", channel="forged"))["code"] == "rejected"
    await ada.sees("subscription", channel="fine", state="live")

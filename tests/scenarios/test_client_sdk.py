"""The Python client against the real server, over a network that breaks."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from aiohttp import ClientSession

from ropewalk.adapters.apps.jwt import issue
from ropewalk.client import (
    AlreadySubscribed,
    Backoff,
    Draft,
    Gap,
    KeyRefused,
    Message,
    NoAnswer,
    Position,
    PresenceChange,
    PresenceState,
    PresentMember,
    PublicationRefused,
    Publisher,
    PublishUnavailable,
    Stream,
    SubscriptionRejected,
    TokenExpired,
    Unauthorized,
    Unreachable,
    connect,
)
from ropewalk.core.signatures import API_PHRASE, derive, sign_stream
from tests.clients.credentials import SHORT_LIFE
from tests.scenarios.relay import Relay, relay_to
from tests.server import RunningServer, running_server

SECONDS = 20
SECRET = "qwerty"
QUICK = Backoff(first=0.02, cap=0.2)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--public", "--history_limit", "1000") as server:
        yield server


@pytest.fixture
async def relay(server: RunningServer) -> AsyncIterator[Relay]:
    async with relay_to(server.port) as relay:
        yield relay


@pytest.fixture
async def publisher(server: RunningServer) -> AsyncIterator[Publisher]:
    async with Publisher(server.url) as publisher:
        yield publisher


async def take_message(stream: Stream) -> Message:
    event = await asyncio.wait_for(anext(stream), SECONDS)
    assert isinstance(event, Message), event
    return event


async def take_offsets(stream: Stream, count: int) -> list[int]:
    return [(await take_message(stream)).offset for _ in range(count)]


async def publish_many(publisher: Publisher, stream: str, count: int, size: int = 0) -> None:
    for start in range(0, count, 500):
        await publisher.publish_batch([Draft(stream, "x" * size or n) for n in range(start, min(count, start + 500))])


async def metric(server: RunningServer, name: str) -> float:
    async with ClientSession() as http, http.get(f"{server.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


# --- receiving --------------------------------------------------------------------------------------------------------


async def test_a_subscriber_receives_what_is_published(server: RunningServer, publisher: Publisher) -> None:
    async with connect(server.url) as client:
        stream = await client.subscribe("receive")
        receipt = await client.publish("receive", {"text": "hi", "big": 12345678901234567890}, broadcast_type="note")
        message = await take_message(stream)
        assert message.data == {"text": "hi", "big": 12345678901234567890}
        assert (message.stream, message.type, message.replayed) == ("receive", "note", False)
        assert message.position == Position(receipt.epoch, receipt.offset)


async def test_the_past_is_read_by_time_and_by_position(server: RunningServer, publisher: Publisher) -> None:
    start = time.time() - 1
    await publish_many(publisher, "past", 5)
    async with connect(server.cable) as client, connect(server.cable) as other:
        by_time = await client.subscribe("past", since=start)
        messages = [await take_message(by_time) for _ in range(5)]
        assert [(message.offset, message.replayed) for message in messages] == [(n, True) for n in range(1, 6)]
        by_position = await other.subscribe("past", position=messages[2].position)
        assert await take_offsets(by_position, 2) == [4, 5]


async def test_a_stream_can_be_read_from_its_beginning(server: RunningServer, publisher: Publisher) -> None:
    await publish_many(publisher, "beginning", 3)
    async with connect(server.url) as client:
        assert await take_offsets(await client.subscribe("beginning", position=Position("", 0)), 3) == [1, 2, 3]


async def test_the_iteration_ends_with_the_subscription_and_with_the_client(server: RunningServer) -> None:
    async with connect(server.url) as client:
        first, second = await client.subscribe("first"), await client.subscribe("second")
        with pytest.raises(AlreadySubscribed):
            await client.subscribe("first")
        await first.unsubscribe()
        assert [event async for event in first] == []
        assert isinstance(await client.subscribe("first"), Stream)
    assert [event async for event in second] == []


# --- a network that breaks --------------------------------------------------------------------------------------------


async def test_a_lost_connection_is_resumed_and_each_message_comes_once(server: RunningServer, publisher: Publisher) -> None:
    async with connect(server.url, backoff=QUICK) as client:
        stream = await client.subscribe("cuts")
        for _ in range(5):
            await publish_many(publisher, "cuts", 3)
            client.cut()
            await publish_many(publisher, "cuts", 3)
        assert await take_offsets(stream, 30) == list(range(1, 31))


async def test_what_was_published_meanwhile_is_replayed(relay: Relay, publisher: Publisher) -> None:
    async with connect(relay.url, backoff=QUICK) as client:
        stream = await client.subscribe("away")
        await publish_many(publisher, "away", 1)
        await take_message(stream)
        relay.open = False
        relay.break_links()
        await publish_many(publisher, "away", 4)
        relay.open = True
        messages = [await take_message(stream) for _ in range(4)]
        assert [(message.offset, message.replayed) for message in messages] == [(n, True) for n in (2, 3, 4, 5)]


async def test_the_first_message_of_a_silent_stream_is_not_missed(relay: Relay, publisher: Publisher) -> None:
    async with connect(relay.url, backoff=QUICK) as client:
        stream = await client.subscribe("silent")
        relay.open = False
        relay.break_links()
        await publish_many(publisher, "silent", 2)
        relay.open = True
        assert await take_offsets(stream, 2) == [1, 2]


async def test_a_link_that_has_gone_silent_is_given_up(relay: Relay, publisher: Publisher) -> None:
    async with connect(relay.url, backoff=QUICK, ping_interval=1) as client:
        stream = await client.subscribe("frozen")
        before = relay.accepted
        relay.freeze()
        await publish_many(publisher, "frozen", 1)
        async with asyncio.timeout(SECONDS):
            while relay.accepted == before:
                await asyncio.sleep(0.05)
        relay.thaw()
        assert await take_offsets(stream, 1) == [1]


async def test_what_no_longer_fits_the_history_is_a_gap_and_the_rest_follows() -> None:
    with running_server("--public", "--history_limit", "5") as server:
        async with (
            relay_to(server.port) as relay,
            Publisher(server.url) as publisher,
            connect(relay.url, backoff=QUICK) as client,
        ):
            stream = await client.subscribe("trimmed")
            await publish_many(publisher, "trimmed", 1)
            first = await take_message(stream)
            relay.open = False
            relay.break_links()
            await publish_many(publisher, "trimmed", 20)
            relay.open = True
            gap = await asyncio.wait_for(anext(stream), SECONDS)
            assert gap == Gap("trimmed", "trimmed", first.position, first.epoch, 17, 21)
            assert gap.missed == 15
            await publish_many(publisher, "trimmed", 1)
            assert await take_offsets(stream, 6) == [17, 18, 19, 20, 21, 22]


async def test_a_server_that_was_killed_and_started_again_is_a_gap_and_then_goes_on() -> None:
    with running_server("--public") as first_life:
        port = str(first_life.port)
        async with connect(first_life.url, backoff=QUICK) as client:
            stream = await client.subscribe("restarted")
            receipt = await client.publish("restarted", "before")
            await take_message(stream)
            first_life.kill()
            with running_server("--public", "--port", port):
                again = await client.publish("restarted", "after")
                gap = await asyncio.wait_for(anext(stream), SECONDS)
                assert isinstance(gap, Gap)
                assert (gap.reason, gap.known) == ("epoch_changed", Position(receipt.epoch, receipt.offset))
                message = await take_message(stream)
                assert (message.data, message.position) == ("after", Position(again.epoch, 1))


async def test_a_graceful_restart_is_survived_too() -> None:
    with running_server("--public") as first_life:
        port = str(first_life.port)
        async with connect(first_life.url, backoff=QUICK) as client:
            stream = await client.subscribe("graceful")
            assert first_life.stop() == 0
            with running_server("--public", "--port", port):
                await client.publish("graceful", "after")
                assert (await take_message(stream)).data == "after"


async def test_a_slow_reader_gets_everything() -> None:
    flags = ("--public", "--history_limit", "10000", "--ws_max_pending_size", "65536")
    with running_server(*flags) as server:
        async with connect(server.url, backoff=QUICK, inbox_size=4) as client, Publisher(server.url) as publisher:
            stream = await client.subscribe("slow")
            await publish_many(publisher, "slow", 8000, size=1000)
            assert await take_offsets(stream, 8000) == list(range(1, 8001))
        assert await metric(server, "ropewalk_slow_disconnects_total") >= 1


async def test_an_unread_stream_does_not_keep_another_subscription_from_its_answer(
    server: RunningServer, publisher: Publisher
) -> None:
    await publish_many(publisher, "unread", 50)
    async with connect(server.url, inbox_size=4, answer_timeout=SECONDS) as client:
        unread = await client.subscribe("unread", position=Position("", 0))
        another = await client.subscribe("another")
        assert (await another.presence()).total == 0
        assert await take_offsets(unread, 50) == list(range(1, 51))


# --- presence and whispers --------------------------------------------------------------------------------------------


async def test_presence_is_seen_by_others_and_held_over_a_lost_connection(server: RunningServer) -> None:
    async with connect(server.url) as watcher, connect(server.url, backoff=QUICK) as client:
        seen = await watcher.subscribe("lobby", presence_events=True)
        stream = await client.subscribe("lobby")
        await stream.join("ann", {"name": "Ann"})
        ann = PresentMember("ann", {"name": "Ann"})
        assert await asyncio.wait_for(anext(seen), SECONDS) == PresenceChange(True, ann)
        assert await seen.presence() == PresenceState(1, (ann,))
        client.cut()
        assert await stream.presence() == PresenceState(1, (ann,))
        await stream.leave()
        assert await asyncio.wait_for(anext(seen), SECONDS) == PresenceChange(False, PresentMember("ann"))


async def test_a_whisper_reaches_the_others_only(server: RunningServer) -> None:
    async with connect(server.url) as client, connect(server.url) as other:
        mine, theirs = await client.subscribe("whispers"), await other.subscribe("whispers")
        await mine.whisper({"typing": True})
        whisper = await take_message(theirs)
        assert (whisper.data, whisper.position) == ({"typing": True}, None)
        await client.publish("whispers", "aloud")
        assert (await take_message(mine)).data == "aloud"


# --- who may come in --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def closed_server() -> Iterator[RunningServer]:
    with running_server("--secret", SECRET, "--enforce_jwt") as server:
        yield server


def token(seconds: int) -> str:
    return issue(SECRET, '{"user":1}', int(time.time()) + seconds)


async def test_a_signed_stream_is_followed_and_a_forged_one_is_rejected(closed_server: RunningServer) -> None:
    async with connect(closed_server.url, token(60), key=derive(SECRET, API_PHRASE)) as client:
        receipt = await client.publish("signed/1", 1)
        stream = await client.subscribe_signed(sign_stream("signed/1", SECRET), position=Position(receipt.epoch, 0))
        assert (await take_message(stream)).stream == "signed/1"
        for refused in (client.subscribe_signed(sign_stream("signed/1", "guess")), client.subscribe("signed/1")):
            with pytest.raises(SubscriptionRejected):
                await refused
        with pytest.raises(SubscriptionRejected):
            await client.subscribe_channel("ChatChannel", id=1)


async def test_a_client_without_a_good_token_is_unauthorized(closed_server: RunningServer) -> None:
    for bad in ("", "nonsense"):
        with pytest.raises(Unauthorized):
            async with connect(closed_server.url, bad):
                pass


async def test_an_expired_token_ends_the_iteration(closed_server: RunningServer) -> None:
    async with connect(closed_server.url, token(SHORT_LIFE)) as client:
        stream = await client.subscribe_signed(sign_stream("expires", SECRET))
        with pytest.raises(TokenExpired):
            await asyncio.wait_for(anext(stream), SECONDS)
        with pytest.raises(TokenExpired):
            await stream.whisper("too late")


async def test_a_refresher_brings_a_new_token_once_and_nothing_is_missed(closed_server: RunningServer) -> None:
    refreshed = asyncio.Event()
    calls = 0

    async def refresh() -> str:
        nonlocal calls
        calls += 1
        refreshed.set()
        return token(60)

    key = derive(SECRET, API_PHRASE)
    async with connect(closed_server.url, token(SHORT_LIFE), key=key, refresh_token=refresh, backoff=QUICK) as client:
        stream = await client.subscribe_signed(sign_stream("refreshed", SECRET))
        await client.publish("refreshed", "before")
        await asyncio.wait_for(refreshed.wait(), SECONDS)
        await client.publish("refreshed", "after")
        assert [(await take_message(stream)).data for _ in range(2)] == ["before", "after"]
        assert calls == 1


async def test_a_refresher_that_brings_an_expired_token_is_asked_once(closed_server: RunningServer) -> None:
    calls = 0

    async def refresh() -> str:
        nonlocal calls
        calls += 1
        return token(-60)

    with pytest.raises(TokenExpired):
        async with connect(closed_server.url, token(-60), refresh_token=refresh, backoff=QUICK):
            pass
    assert calls == 1


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    with pytest.raises(Unreachable, match="cannot be reached"):
        async with connect("http://127.0.0.1:1"):
            pass


async def test_an_endpoint_that_is_no_cable_is_unreachable(server: RunningServer) -> None:
    with pytest.raises(Unreachable, match="no WebSocket"):
        async with connect(server.url + "/health"):
            pass


async def test_a_server_that_does_not_answer_in_time_is_said_so(relay: Relay) -> None:
    async with connect(relay.url, answer_timeout=0.1) as client:
        relay.freeze()
        with pytest.raises(NoAnswer, match=r"within 0.1 seconds: it may be waiting for the store or the node .* /health"):
            await client.subscribe("late")


# --- publishing -------------------------------------------------------------------------------------------------------


async def test_a_publication_whose_answer_was_lost_is_registered_once(relay: Relay) -> None:
    relay.answers_lost = 1
    async with Publisher(relay.url, backoff=QUICK) as publisher:
        receipt = await publisher.publish("once", "hello")
        assert (receipt.offset, receipt.duplicate) == (1, True)
        assert (await publisher.publish("once", "again")).offset == 2


async def test_a_transient_publication_is_not_sent_twice(relay: Relay) -> None:
    relay.answers_lost = 1
    async with Publisher(relay.url, backoff=QUICK) as publisher:
        with pytest.raises(PublishUnavailable):
            await publisher.publish("once", "hello", transient=True)
    assert relay.accepted == 1


async def test_a_uid_of_ones_own_gets_its_first_position_back(publisher: Publisher) -> None:
    first = await publisher.publish("own-uid", 1, uid="order-7")
    second = await publisher.publish("own-uid", 1, uid="order-7")
    assert (second.epoch, second.offset, second.duplicate) == (first.epoch, first.offset, True)


async def test_a_bad_batch_names_the_publication_and_registers_nothing(publisher: Publisher) -> None:
    with pytest.raises(PublicationRefused) as refused:
        await publisher.publish_batch([Draft("batch", 1), Draft("", 2)])
    assert refused.value.index == 1
    assert (await publisher.publish("batch", 1)).offset == 1


async def test_a_wrong_key_is_refused(closed_server: RunningServer) -> None:
    async with Publisher(closed_server.url, "guess") as publisher:
        with pytest.raises(KeyRefused):
            await publisher.publish("a", 1)


async def test_a_server_that_stays_away_is_unavailable_after_the_last_attempt() -> None:
    async with Publisher("http://127.0.0.1:1", attempts=3, backoff=QUICK) as publisher:
        with pytest.raises(PublishUnavailable, match="cannot be reached"):
            await publisher.publish("a", 1)

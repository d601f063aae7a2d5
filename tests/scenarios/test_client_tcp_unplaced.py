"""The Python client over TCP, where there are no positions to go on from: subscriptions by prefix, and ephemeral streams."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from ropewalk.client import (
    AlreadySubscribed,
    Backoff,
    BrokyMessage,
    Client,
    Event,
    Gap,
    Message,
    NotSupported,
    Position,
    Pusher,
    Stream,
    SubscriptionRejected,
    connect,
)
from ropewalk.core.signatures import API_PHRASE, derive
from ropewalk.model.errors import UserMistake
from tests.process_tree import store
from tests.scenarios.relay import Relay, relay_to
from tests.server import RunningServer, running_server

SECONDS = 20
QUICK = Backoff(first=0.02, cap=0.2)


@pytest.fixture(scope="module", params=["1", "2"])
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    with running_server("--public", "--workers", request.param) as running:
        yield running


@pytest.fixture(scope="module", params=["1", "2"])
def forgetful(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    with running_server("--public", "--history_limit", "0", "--workers", request.param) as running:
        yield running


@pytest.fixture
async def relay(server: RunningServer) -> AsyncIterator[Relay]:
    async with relay_to(server.port) as relay:
        yield relay


@pytest.fixture
async def client(relay: Relay) -> AsyncIterator[Client]:
    async with connect(relay.url.replace("http", "tcp"), backoff=QUICK) as client:
        yield client


@pytest.fixture
async def pusher(server: RunningServer) -> AsyncIterator[Pusher]:
    async with Pusher(server.url) as pusher:
        yield pusher


async def take(stream: Stream) -> Event:
    return await asyncio.wait_for(anext(stream), SECONDS)


async def take_messages(stream: Stream, count: int) -> list[tuple[str, int, bytes]]:
    events = [await take(stream) for _ in range(count)]
    return [(event.stream, event.offset, event.payload) for event in events if isinstance(event, BrokyMessage)]


# --- by prefix --------------------------------------------------------------------------------------------------------


async def test_all_keys_that_begin_with_it_are_followed_each_in_its_order(client: Client, pusher: Pusher) -> None:
    stream = await client.subscribe("one/", prefix=True)
    await pusher.push("one/a", [b"1", b"2"])
    await pusher.push("other", b"no")
    await pusher.push(b"one/\xff", b"3")
    await pusher.push("one/a", b"4")
    got = await take_messages(stream, 4)
    assert [message for message in got if message[0] == "one/a"] == [("one/a", 1, b"1"), ("one/a", 2, b"2"), ("one/a", 3, b"4")]
    assert ("~b64:b25lL_8", 1, b"3") in got
    await stream.unsubscribe()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    exact = await client.subscribe("one/a", position=Position("", 0))
    assert [offset for _, offset, _ in await take_messages(exact, 3)] == [1, 2, 3]


async def test_what_came_without_a_connection_is_said_to_be_missing(client: Client, relay: Relay, pusher: Pusher) -> None:
    stream = await client.subscribe("cut/", prefix=True)
    await pusher.push("cut/a", b"1")
    assert await take_messages(stream, 1) == [("cut/a", 1, b"1")]
    relay.open = False
    relay.break_links()
    await pusher.push("cut/a", b"2")
    relay.open = True
    assert await take(stream) == Gap("cut/", "disconnected")
    await pusher.push("cut/a", b"3")
    assert await take_messages(stream, 1) == [("cut/a", 3, b"3")]


async def test_subscriptions_that_overlap_are_refused_here(client: Client) -> None:
    await client.subscribe("over/", prefix=True)
    await client.subscribe("under/a")
    for wrong in (
        client.subscribe("over/a"),
        client.subscribe("over/a", prefix=True),
        client.subscribe("over", prefix=True),
        client.subscribe("under", prefix=True),
    ):
        with pytest.raises(AlreadySubscribed):
            await wrong
    for past in ({"since": 1.0}, {"position": Position("", 0)}):
        with pytest.raises(UserMistake, match="no past"):
            await client.subscribe("past/", prefix=True, **past)


async def test_it_is_for_public_streams_over_tcp(server: RunningServer) -> None:
    async with connect(server.url) as cable:
        with pytest.raises(NotSupported, match="tcp://"):
            await cable.subscribe("a", prefix=True)
    with running_server("--secret", "qwerty", "--noauth") as guarded:
        url, key = f"tcp://127.0.0.1:{guarded.port}", derive("qwerty", API_PHRASE)
        async with connect(url, key=key) as client:
            with pytest.raises(SubscriptionRejected):
                await client.subscribe("a", prefix=True)
            assert (await client.push("a", b"x")).offset == 1


# --- ephemeral --------------------------------------------------------------------------------------------------------


async def test_messages_of_an_ephemeral_stream_have_no_positions_and_a_lost_connection_is_said(
    forgetful: RunningServer,
) -> None:
    async with (
        relay_to(forgetful.port) as relay,
        connect(relay.url.replace("http", "tcp"), backoff=QUICK) as client,
        connect(forgetful.url) as cable,
        Pusher(forgetful.url) as pusher,
    ):
        stream = await client.subscribe("gone")
        text = await cable.subscribe("gone")
        assert await pusher.push("gone", [b"%d" % number for number in range(100)]) == Position("", 0)
        assert await take_messages(stream, 100) == [("gone", 0, b"%d" % number) for number in range(100)]
        assert len([await take(text) for _ in range(100)]) == 100
        relay.break_links()
        assert await take(stream) == Gap("gone", "disconnected", Position("", 0))
        await pusher.push("gone", b"again")
        assert await take_messages(stream, 1) == [("gone", 0, b"again")]


async def test_a_lost_connection_to_an_ephemeral_stream_is_said_before_anything_has_come(forgetful: RunningServer) -> None:
    async with (
        relay_to(forgetful.port) as relay,
        connect(relay.url.replace("http", "tcp"), backoff=QUICK) as client,
        Pusher(forgetful.url) as pusher,
    ):
        stream = await client.subscribe("silent")
        for _ in range(2):
            relay.open = False
            relay.break_links()
            await pusher.push("silent", b"lost")
            relay.open = True
            assert await take(stream) == Gap("silent", "disconnected", Position("", 0))
        await pusher.push("silent", b"again")
        assert await take_messages(stream, 1) == [("silent", 0, b"again")]


async def test_a_stream_with_history_that_was_silent_before_a_lost_connection_loses_nothing(
    client: Client, relay: Relay, pusher: Pusher
) -> None:
    await pusher.push("stood", b"before")
    streams = [await client.subscribe("stood"), await client.subscribe("new")]
    relay.open = False
    relay.break_links()
    for name in ("stood", "new"):
        await pusher.push(name, b"meanwhile")
    relay.open = True
    assert await take_messages(streams[0], 1) == [("stood", 2, b"meanwhile")]
    assert await take_messages(streams[1], 1) == [("new", 1, b"meanwhile")]


@pytest.mark.parametrize("scheme", ["tcp", "http"])
@pytest.mark.parametrize("before", [0, 1])
async def test_what_may_be_lost_between_processes_is_said(scheme: str, before: int) -> None:
    with running_server("--public", "--history_limit", "0", "--workers", "2") as running:
        async with connect(f"{scheme}://127.0.0.1:{running.port}") as client, Pusher(running.url) as pusher:
            stream = await client.subscribe("doubtful")
            for _ in range(before):
                await pusher.push("doubtful", b"1")
                assert isinstance(await take(stream), Message)
            os.kill(store(running), signal.SIGKILL)
            gap = await take(stream)
            assert repr(gap) == repr(Gap("doubtful", "trimmed", Position("", 0)))


async def test_a_run_of_an_ephemeral_stream_comes_as_its_producer_sent_it(forgetful: RunningServer) -> None:
    url = f"tcp://127.0.0.1:{forgetful.port}"
    async with connect(url) as client, Pusher(url) as pusher:
        stream = await client.subscribe("as it is")
        await pusher.push("as it is", [b"1", b"2"], uids=[b"a" * 20, b"b" * 20], ts_producer=[5, 6])
        first, second = await take(stream), await take(stream)
        assert isinstance(first, BrokyMessage)
        assert isinstance(second, BrokyMessage)
        assert [(each.payload, each.uid, each.ts_producer) for each in (first, second)] == [
            (b"1", b"a" * 20, 5),
            (b"2", b"b" * 20, 6),
        ]

"""The Python client reads what a stream keeps, without a subscription, over TCP and against the real server."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from ropewalk.adapters.apps.jwt import issue
from ropewalk.client import (
    Backoff,
    BrokyMessage,
    Client,
    Ended,
    Event,
    Gap,
    HistoryRefused,
    KeptMessages,
    Message,
    NoAnswer,
    NotSupported,
    Position,
    UserMistake,
    connect,
    new_uid,
)
from ropewalk.core.signatures import API_PHRASE, derive, sign_stream
from ropewalk.protocol.broky.ksuid import ksuid_of
from tests.scenarios.relay import Relay, relay_to
from tests.server import Address, RunningServer, running_server

SECRET = "qwerty"
KEPT = 50
QUICK = Backoff(first=0.02, cap=0.2)


def tcp(address: Address | Relay) -> str:
    return address.url.replace("http", "tcp")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--public", "--history_limit", str(KEPT)) as server:
        yield server


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[Client]:
    async with connect(tcp(server), backoff=QUICK) as client:
        yield client


@pytest.fixture
async def relay(server: RunningServer) -> AsyncIterator[Relay]:
    async with relay_to(server.port) as relay:
        yield relay


def offsets(page: KeptMessages) -> list[int]:
    return [message.offset for message in page.events if isinstance(message, Message)]


async def test_a_stream_is_read_page_by_page(client: Client) -> None:
    first = await client.push("read/pages", [b"%d" % number for number in range(1, 46)])
    got: list[Event] = []
    page = await client.read("read/pages", limit=20)
    sizes = [len(page.events)]
    while page.more:
        got += page.events
        page = await client.read("read/pages", position=page.position, limit=20)
        sizes.append(len(page.events))
    got += page.events
    assert sizes == [20, 20, 5]
    assert [(event.offset, event.data) for event in got if isinstance(event, Message)] == [
        (number, b"%d" % number) for number in range(1, 46)
    ]
    assert (page.position, page.oldest, page.tip) == (Position(first.epoch, 45), 1, 45)
    assert (await client.read("read/pages", position=page.position)).events == []


async def test_messages_have_what_their_producers_gave(client: Client) -> None:
    uid = new_uid()
    await client.push(b"read/\xff", b"x", uids=[uid], ts_producer=[7], key_partition="part")
    (message,) = (await client.read(b"read/\xff")).events
    assert isinstance(message, BrokyMessage)
    assert (message.key, message.uid, message.ts_producer) == (b"read/\xff", ksuid_of(uid), 7)
    assert (message.key_partition, message.replayed) == (b"part", True)


async def test_what_is_no_longer_kept_is_a_gap(client: Client) -> None:
    first = await client.push("read/trimmed", [b"x"] * (KEPT + 10))
    page = await client.read("read/trimmed", position=Position(first.epoch, 4))
    assert page.events[0] == Gap("read/trimmed", "trimmed", Position(first.epoch, 4), first.epoch, 11, KEPT + 10)
    assert offsets(page) == list(range(11, KEPT + 11))
    whatever = await client.read("read/trimmed")
    assert (len(whatever.events), whatever.oldest) == (KEPT, 11), "whoever names no position misses nothing"


async def test_nothing_is_known_of_a_stream_that_nobody_used(client: Client) -> None:
    page = await client.read("read/unused")
    assert (page.events, page.position, page.more) == ([], None, False)


async def test_reading_changes_nothing_for_a_subscription_to_the_same_stream(client: Client) -> None:
    stream = await client.subscribe("read/both")
    pushes = [client.push("read/both", b"%d" % number) for number in range(20)]
    pages = [client.read("read/both") for _ in range(5)]
    await asyncio.gather(*pushes, *pages)
    async with asyncio.timeout(20):
        live = [await anext(stream) for _ in range(20)]
    assert [event.offset for event in live if isinstance(event, Message)] == list(range(1, 21))
    assert offsets(await client.read("read/both")) == list(range(1, 21))


async def test_a_read_outlives_a_lost_connection(relay: Relay) -> None:
    async with connect(tcp(relay), backoff=QUICK) as client:
        await client.push("read/cut", [b"x"] * 3)
        relay.freeze()
        reading = asyncio.create_task(client.read("read/cut"))
        await asyncio.sleep(0)  # it has asked
        relay.break_links()
        relay.thaw()
        assert offsets(await reading) == [1, 2, 3]
        assert relay.accepted > 1


async def test_a_read_that_is_not_answered_in_time_is_told_so(relay: Relay) -> None:
    async with connect(tcp(relay), backoff=QUICK, answer_timeout=0.2, ping_interval=None) as client:
        relay.freeze()
        with pytest.raises(NoAnswer):
            await client.read("read/unanswered")


async def test_a_read_that_was_given_up_spoils_nothing(relay: Relay) -> None:
    async with connect(tcp(relay), backoff=QUICK, ping_interval=None) as client:
        relay.freeze()
        reading = asyncio.create_task(client.read("read/silent"))
        await asyncio.sleep(0)
        reading.cancel()
        relay.thaw()
        assert (await client.push("read/silent", b"x")).offset == 1
        assert offsets(await client.read("read/silent")) == [1]


async def test_reads_end_with_the_client(relay: Relay) -> None:
    async with connect(tcp(relay), backoff=QUICK) as client:
        relay.freeze()
        reading = asyncio.create_task(client.read("read/ends"))
        await asyncio.sleep(0)
    with pytest.raises(Ended):
        await reading
    with pytest.raises(Ended):
        await client.read("read/ends")


async def test_a_program_that_errs_is_told(server: RunningServer, client: Client) -> None:
    for mistake in (client.read("a", limit=0), client.read("a", limit=1001), client.read("~b64:!"), client.read_signed("none")):
        with pytest.raises(UserMistake):
            await mistake
    async with connect(server.url) as other:
        for read in (other.read("a"), other.read_signed("a")):
            with pytest.raises(NotSupported, match="tcp://"):
                await read


async def test_whoever_may_subscribe_may_read() -> None:
    with running_server("--secret", SECRET, "--enforce_jwt") as guarded:
        token = issue(SECRET, '{"user":1}', int(time.time()) + 600)
        key = derive(SECRET, API_PHRASE)
        async with connect(tcp(guarded), token, key=key) as client:
            await client.push("read/signed", [b"x"] * 2)
            page = await client.read_signed(sign_stream("read/signed", SECRET))
            assert [(event.stream, event.offset) for event in page.events if isinstance(event, Message)] == [
                ("read/signed", 1),
                ("read/signed", 2),
            ]
            for refused in (client.read("read/signed"), client.read_signed(sign_stream("read/signed", "another"))):
                with pytest.raises(HistoryRefused) as told:
                    await refused
                assert told.value.reason == "this key may not be read"

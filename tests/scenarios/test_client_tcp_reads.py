"""Reads of history by the Python client over Broky, without a subscription."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ropewalk.client import (
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
    new_uid,
)
from ropewalk.protocol.broky.ksuid import parse_ksuid
from tests.broky_client import new_key
from tests.clients.credentials import FOREIGN_SECRET, signed, token
from tests.scenarios.python_clients import API_KEY, CABLE, SECONDS, TCP
from tests.scenarios.relay import Relay
from tests.scenarios.shared_servers import DEFAULT_HISTORY_LIMIT
from tests.server import RunningServer

KEPT = DEFAULT_HISTORY_LIMIT


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[Client]:
    async with TCP.client(server) as client:
        yield client


@pytest.fixture
def name() -> str:
    return new_key().decode()


def offsets(page: KeptMessages) -> list[int]:
    return [message.offset for message in page.events if isinstance(message, Message)]


async def test_pages_miss_and_repeat_no_message(client: Client, name: str) -> None:
    first = await client.push(name, [b"%d" % number for number in range(1, 46)])
    got: list[Event] = []
    page = await client.read(name, limit=20)
    sizes = [len(page.events)]
    while page.more:
        got += page.events
        page = await client.read(name, position=page.position, limit=20)
        sizes.append(len(page.events))
    got += page.events
    assert sizes == [20, 20, 5]
    assert [(event.offset, event.data) for event in got if isinstance(event, Message)] == [
        (number, b"%d" % number) for number in range(1, 46)
    ]
    assert (page.position, page.oldest, page.tip) == (Position(first.epoch, 45), 1, 45)
    assert (await client.read(name, position=page.position)).events == []


async def test_read_messages_have_the_fields_of_their_producers(client: Client, name: str) -> None:
    uid = new_uid()
    await client.push(b"\xff" + name.encode(), b"x", uids=[uid], ts_producer=[7], key_partition="part")
    (message,) = (await client.read(b"\xff" + name.encode())).events
    assert isinstance(message, BrokyMessage)
    assert (message.key, message.uid, message.ts_producer) == (b"\xff" + name.encode(), parse_ksuid(uid), 7)
    assert (message.key_partition, message.replayed) == (b"part", True)


async def test_trimmed_messages_are_a_gap(client: Client, name: str) -> None:
    first = await client.push(name, [b"x"] * (KEPT + 10))
    page = await client.read(name, position=Position(first.epoch, 4))
    assert page.events[0] == Gap(name, "trimmed", Position(first.epoch, 4), first.epoch, 11, KEPT + 10)
    assert offsets(page) == list(range(11, KEPT + 11))
    kept = await client.read(name)
    assert (len(kept.events), kept.oldest) == (KEPT, 11), "without a position there is no gap"


async def test_unknown_stream_has_an_empty_page(client: Client, name: str) -> None:
    page = await client.read(name)
    assert (page.events, page.position, page.more) == ([], None, False)


async def test_reads_do_not_affect_a_subscription_to_the_same_stream(client: Client, name: str) -> None:
    stream = await client.subscribe(name)
    pushes = [client.push(name, b"%d" % number) for number in range(20)]
    pages = [client.read(name) for _ in range(5)]
    await asyncio.gather(*pushes, *pages)
    async with asyncio.timeout(SECONDS):
        live = [await anext(stream) for _ in range(20)]
    assert [event.offset for event in live if isinstance(event, Message)] == list(range(1, 21))
    assert offsets(await client.read(name)) == list(range(1, 21))


async def test_read_survives_a_lost_connection(relay: Relay, name: str) -> None:
    async with TCP.client(relay) as client:
        await client.push(name, [b"x"] * 3)
        relay.freeze()
        reading = asyncio.create_task(client.read(name))
        await asyncio.sleep(0)  # it has asked
        relay.break_links()
        relay.thaw()
        assert offsets(await reading) == [1, 2, 3]
        assert relay.accepted > 1


async def test_missing_answer_is_reported_after_the_timeout(relay: Relay, name: str) -> None:
    async with TCP.client(relay, answer_timeout=0.2, ping_interval=None) as client:
        relay.freeze()
        with pytest.raises(NoAnswer):
            await client.read(name)


async def test_cancelled_read_does_not_affect_later_calls(relay: Relay, name: str) -> None:
    async with TCP.client(relay, ping_interval=None) as client:
        relay.freeze()
        reading = asyncio.create_task(client.read(name))
        await asyncio.sleep(0)
        reading.cancel()
        relay.thaw()
        assert (await client.push(name, b"x")).offset == 1
        assert offsets(await client.read(name)) == [1]


async def test_pending_reads_end_with_the_client(relay: Relay, name: str) -> None:
    async with TCP.client(relay) as client:
        relay.freeze()
        reading = asyncio.create_task(client.read(name))
        await asyncio.sleep(0)
    with pytest.raises(Ended):
        await reading
    with pytest.raises(Ended):
        await client.read(name)


async def test_invalid_arguments_are_user_mistakes(server: RunningServer, client: Client) -> None:
    for mistake in (client.read("a", limit=0), client.read("a", limit=1001), client.read("~b64:!"), client.read_signed("none")):
        with pytest.raises(UserMistake):
            await mistake
    async with CABLE.client(server) as other:
        for read in (other.read("a"), other.read_signed("a")):
            with pytest.raises(NotSupported, match="tcp://"):
                await read


async def test_only_clients_that_may_subscribe_may_read(guarded: RunningServer, name: str) -> None:
    async with TCP.client(guarded, token(), key=API_KEY) as client:
        await client.push(name, [b"x"] * 2)
        page = await client.read_signed(signed(name))
        assert [(event.stream, event.offset) for event in page.events if isinstance(event, Message)] == [(name, 1), (name, 2)]
        for refused in (client.read(name), client.read_signed(signed(name, FOREIGN_SECRET))):
            with pytest.raises(HistoryRefused) as refusal:
                await refused
            assert refusal.value.reason == "this key may not be read"

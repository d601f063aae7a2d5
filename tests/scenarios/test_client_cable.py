"""The Python client over WebSocket, beyond what both clients share: presence, whispers, and publishing over HTTP."""

from collections.abc import AsyncIterator

import pytest

from ropewalk.client import (
    Client,
    Draft,
    KeyRefused,
    Position,
    PresenceChange,
    PresenceState,
    PresentMember,
    PublicationRefused,
    Publisher,
    PublishUnavailable,
    Unreachable,
    connect,
)
from tests.broky_client import new_key
from tests.scenarios.python_clients import CABLE, PATIENT, QUICK, take, take_event
from tests.scenarios.relay import Relay
from tests.scenarios.shared_servers import LONG_HISTORY, ServerWith
from tests.server import RunningServer


@pytest.fixture(scope="module")
def server(server_with: ServerWith) -> RunningServer:
    return server_with(*LONG_HISTORY)


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[Client]:
    async with CABLE.client(server) as client:
        yield client


@pytest.fixture
def name() -> str:
    return new_key().decode()


async def test_published_message_comes_with_its_type_and_position(client: Client, name: str) -> None:
    stream = await client.subscribe(name)
    receipt = await client.publish(name, {"text": "hi", "big": 12345678901234567890}, broadcast_type="note")
    message = await take(stream)
    assert message.data == {"text": "hi", "big": 12345678901234567890}
    assert (message.stream, message.type, message.replayed) == (name, "note", False)
    assert message.position == Position(receipt.epoch, receipt.offset)


async def test_full_cable_address_is_accepted_and_another_endpoint_is_unreachable(server: RunningServer, name: str) -> None:
    async with connect(server.cable, **PATIENT) as client:
        assert (await client.publish(name, 1)).offset == 1
    with pytest.raises(Unreachable, match="not the WebSocket of a cable server"):
        async with connect(server.url + "/health"):
            pass


# --- presence and whispers --------------------------------------------------------------------------------------------


async def test_presence_is_seen_by_others_and_kept_over_a_lost_connection(
    server: RunningServer, client: Client, name: str
) -> None:
    async with CABLE.client(server) as watcher:
        seen = await watcher.subscribe(name, presence_events=True)
        stream = await client.subscribe(name)
        await stream.join("ann", {"name": "Ann"})
        ann = PresentMember("ann", {"name": "Ann"})
        assert await take_event(seen) == PresenceChange(True, ann)
        assert await seen.presence() == PresenceState(1, (ann,))
        client.cut()
        assert await stream.presence() == PresenceState(1, (ann,))
        await stream.leave()
        assert await take_event(seen) == PresenceChange(False, PresentMember("ann"))


async def test_whisper_reaches_the_other_subscribers_only(server: RunningServer, client: Client, name: str) -> None:
    async with CABLE.client(server) as other:
        mine, theirs = await client.subscribe(name), await other.subscribe(name)
        await mine.whisper({"typing": True})
        whisper = await take(theirs)
        assert (whisper.data, whisper.position) == ({"typing": True}, None)
        await client.publish(name, "published")
        assert (await take(mine)).data == "published"


# --- publishing -------------------------------------------------------------------------------------------------------


async def test_publication_whose_answer_is_lost_is_registered_once(relay: Relay, name: str) -> None:
    relay.answers_lost = 1
    async with Publisher(relay.url, backoff=QUICK) as publisher:
        receipt = await publisher.publish(name, "hello")
        assert (receipt.offset, receipt.duplicate) == (1, True)
        assert (await publisher.publish(name, "again")).offset == 2


async def test_transient_publication_is_not_sent_twice(relay: Relay, name: str) -> None:
    relay.answers_lost = 1
    async with Publisher(relay.url, backoff=QUICK) as publisher:
        with pytest.raises(PublishUnavailable):
            await publisher.publish(name, "hello", transient=True)
    assert relay.accepted == 1


async def test_repeated_uid_gets_the_first_position(publisher: Publisher, name: str) -> None:
    first = await publisher.publish(name, 1, uid="order-7")
    second = await publisher.publish(name, 1, uid="order-7")
    assert (second.epoch, second.offset, second.duplicate) == (first.epoch, first.offset, True)


async def test_invalid_batch_is_refused_with_the_index_and_registers_nothing(publisher: Publisher, name: str) -> None:
    with pytest.raises(PublicationRefused) as refused:
        await publisher.publish_batch([Draft(name, 1), Draft("", 2)])
    assert refused.value.index == 1
    assert (await publisher.publish(name, 1)).offset == 1


async def test_publisher_takes_none_for_no_key_and_no_ca_file(server: RunningServer, name: str) -> None:
    async with Publisher(server.url, None, ca_file=None) as publisher:
        assert (await publisher.publish(name, 1)).offset == 1


async def test_wrong_key_is_refused(guarded: RunningServer, name: str) -> None:
    async with Publisher(guarded.url, "guess") as publisher:
        with pytest.raises(KeyRefused):
            await publisher.publish(name, 1)


async def test_unreachable_server_is_unavailable_after_the_last_attempt(name: str) -> None:
    async with Publisher("http://127.0.0.1:1", attempts=3, backoff=QUICK) as publisher:
        with pytest.raises(PublishUnavailable, match="cannot be reached"):
            await publisher.publish(name, 1)

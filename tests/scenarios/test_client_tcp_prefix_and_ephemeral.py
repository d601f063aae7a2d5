"""The Python client over Broky without positions to continue from: subscriptions by prefix, and ephemeral streams."""

import os
import signal
from collections.abc import AsyncIterator

import pytest

from ropewalk.client import (
    AlreadySubscribed,
    BrokyMessage,
    Client,
    Gap,
    NotSupported,
    Position,
    Pusher,
    Stream,
    SubscriptionRejected,
)
from ropewalk.model.errors import UserMistake
from ropewalk.protocol.stream_keys import decode_key
from tests.broky_client import new_key
from tests.clients.credentials import SECRET
from tests.process_tree import store
from tests.scenarios.python_clients import API_KEY, CABLE, TCP, Wire, pusher_to, take, take_broky, take_event
from tests.scenarios.relay import Relay, relay_to
from tests.scenarios.shared_servers import EPHEMERAL, ServerWith
from tests.server import RunningServer, running_server


@pytest.fixture(scope="module")
def server(server_with: ServerWith, worker_flags: tuple[str, ...]) -> RunningServer:
    return server_with("--public", *worker_flags)


@pytest.fixture(scope="module")
def ephemeral(server_with: ServerWith, worker_flags: tuple[str, ...]) -> RunningServer:
    return server_with(*EPHEMERAL, *worker_flags)


@pytest.fixture
async def client(relay: Relay) -> AsyncIterator[Client]:
    async with TCP.client(relay) as client:
        yield client


@pytest.fixture
async def pusher(server: RunningServer) -> AsyncIterator[Pusher]:
    async with pusher_to(server) as pusher:
        yield pusher


@pytest.fixture
def name() -> str:
    return new_key().decode()


async def take_messages(stream: Stream, count: int) -> list[tuple[str, int, bytes]]:
    events = [await take_event(stream) for _ in range(count)]
    return [(event.stream, event.offset, event.payload) for event in events if isinstance(event, BrokyMessage)]


# --- by prefix --------------------------------------------------------------------------------------------------------


async def test_prefix_delivers_all_matching_keys_each_in_order(client: Client, pusher: Pusher, name: str) -> None:
    prefix, key = f"{name}/", f"{name}/a"
    stream = await client.subscribe(prefix, prefix=True)
    await pusher.push(key, [b"1", b"2"])
    await pusher.push(name, b"no")
    await pusher.push(prefix.encode() + b"\xff", b"3")
    await pusher.push(key, b"4")
    got = await take_messages(stream, 4)
    assert [message for message in got if message[0] == key] == [(key, 1, b"1"), (key, 2, b"2"), (key, 3, b"4")]
    assert (decode_key(prefix.encode() + b"\xff"), 1, b"3") in got
    await stream.unsubscribe()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    exact = await client.subscribe(key, position=Position("", 0))
    assert [offset for _, offset, _ in await take_messages(exact, 3)] == [1, 2, 3]


async def test_lost_connection_of_a_prefix_is_a_gap(client: Client, relay: Relay, pusher: Pusher, name: str) -> None:
    prefix, key = f"{name}/", f"{name}/a"
    stream = await client.subscribe(prefix, prefix=True)
    await pusher.push(key, b"1")
    assert await take_messages(stream, 1) == [(key, 1, b"1")]
    with relay.closed():
        await pusher.push(key, b"2")
    assert await take_event(stream) == Gap(prefix, "disconnected")
    await pusher.push(key, b"3")
    assert await take_messages(stream, 1) == [(key, 3, b"3")]


async def test_overlapping_subscriptions_are_refused_by_the_client(client: Client, name: str) -> None:
    await client.subscribe(f"{name}/over/", prefix=True)
    await client.subscribe(f"{name}/under/a")
    for wrong in (
        client.subscribe(f"{name}/over/a"),
        client.subscribe(f"{name}/over/a", prefix=True),
        client.subscribe(f"{name}/over", prefix=True),
        client.subscribe(f"{name}/under", prefix=True),
    ):
        with pytest.raises(AlreadySubscribed):
            await wrong
    with pytest.raises(UserMistake, match="no history"):
        await client.subscribe(f"{name}/past/", prefix=True, since=1.0)
    with pytest.raises(UserMistake, match="no history"):
        await client.subscribe(f"{name}/past/", prefix=True, position=Position("", 0))


async def test_prefix_needs_broky_and_public_streams(server: RunningServer, server_with: ServerWith, name: str) -> None:
    async with CABLE.client(server) as cable:
        with pytest.raises(NotSupported, match="tcp://"):
            await cable.subscribe(name, prefix=True)
    async with TCP.client(server_with("--secret", SECRET, "--noauth"), key=API_KEY) as client:
        with pytest.raises(SubscriptionRejected):
            await client.subscribe(name, prefix=True)
        assert (await client.push(name, b"x")).offset == 1


# --- ephemeral --------------------------------------------------------------------------------------------------------


async def test_ephemeral_messages_have_no_positions_and_a_lost_connection_is_a_gap(ephemeral: RunningServer, name: str) -> None:
    async with (
        relay_to(ephemeral.port) as relay,
        TCP.client(relay) as client,
        CABLE.client(ephemeral) as cable,
        pusher_to(ephemeral) as pusher,
    ):
        stream = await client.subscribe(name)
        text = await cable.subscribe(name)
        assert await pusher.push(name, [b"%d" % number for number in range(100)]) == Position("", 0)
        assert await take_messages(stream, 100) == [(name, 0, b"%d" % number) for number in range(100)]
        assert len([await take(text) for _ in range(100)]) == 100
        relay.break_links()
        assert await take_event(stream) == Gap(name, "disconnected", Position("", 0))
        await pusher.push(name, b"again")
        assert await take_messages(stream, 1) == [(name, 0, b"again")]


async def test_lost_connection_of_a_silent_ephemeral_stream_is_a_gap(ephemeral: RunningServer, name: str) -> None:
    async with relay_to(ephemeral.port) as relay, TCP.client(relay) as client, pusher_to(ephemeral) as pusher:
        stream = await client.subscribe(name)
        for _ in range(2):
            with relay.closed():
                await pusher.push(name, b"lost")
            assert await take_event(stream) == Gap(name, "disconnected", Position("", 0))
        await pusher.push(name, b"again")
        assert await take_messages(stream, 1) == [(name, 0, b"again")]


@pytest.mark.tier("all")
@pytest.mark.parametrize("wire", [TCP, CABLE], ids=["tcp", "cable"])
async def test_lost_store_process_is_a_gap_of_ephemeral_streams(wire: Wire) -> None:
    with running_server(*EPHEMERAL, "--workers", "2") as running:
        async with wire.client(running) as client, pusher_to(running) as pusher:
            silent, used = await client.subscribe("silent"), await client.subscribe("used")
            await pusher.push("used", b"1")
            await take(used)
            os.kill(store(running), signal.SIGKILL)
            for stream, name in ((silent, "silent"), (used, "used")):
                assert repr(await take_event(stream)) == repr(Gap(name, "trimmed", Position("", 0)))


async def test_ephemeral_run_keeps_the_fields_of_its_producer(ephemeral: RunningServer, name: str) -> None:
    async with TCP.client(ephemeral) as client, pusher_to(ephemeral) as pusher:
        stream = await client.subscribe(name)
        await pusher.push(name, [b"1", b"2"], uids=[b"a" * 20, b"b" * 20], ts_producer=[5, 6])
        first, second = await take_broky(stream), await take_broky(stream)
        assert [(each.payload, each.uid, each.ts_producer) for each in (first, second)] == [
            (b"1", b"a" * 20, 5),
            (b"2", b"b" * 20, 6),
        ]

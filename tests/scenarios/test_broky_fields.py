"""What a producer says of a message beside its payload comes to subscribers over TCP also where history is kept: live,
replayed, read, after a restart, from every process, node and broker."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ropewalk.client import connect
from ropewalk.client.events import BrokyMessage
from ropewalk.protocol.broky.frames import Format, History, HistoryPage, Pushed, Reason, Refused, Run
from ropewalk.protocol.broky.ksuid import KSUID_BYTES, ksuid_text, new_ksuid
from ropewalk.protocol.broky.runs import payloads_of, run_of
from tests.broky_client import BrokyClient, client
from tests.cable import cable
from tests.ring.ring import running_ring, streams_of_all_shards
from tests.server import Address, RunningServer, publish, running_server
from tests.services import nats_server, redis_server

PARTITION = b"\xfepart"
UIDS = [new_ksuid(number) for number in (1.0, 2.0, 3.0)]
LATEST = 2**64 - 1

Told = tuple[int, bytes, bytes, int, bytes]

EXPECTED: list[Told] = [
    (1, b"a", UIDS[0], 5, PARTITION),
    (2, b"b", UIDS[1], LATEST, PARTITION),
    (3, b"c", b"", 7, PARTITION),
    (4, b"4", UIDS[2], 0, PARTITION),
    (5, b"5", b"", 0, PARTITION),
]
"""Of the messages that `push_all` brings: offset, payload, uid, ts_producer and key_partition."""


@pytest.fixture(scope="module", params=["1", "2"])
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    with running_server("--public", "--workers", request.param) as running:
        yield running


def key() -> bytes:
    """Of a stream that nobody else uses."""
    return random.randbytes(12).hex().encode()


async def push_all(server: RunningServer, stream: bytes, partition: bytes = PARTITION) -> bytes:
    """Over TCP with and without each of the fields, and over HTTP. Returns the epoch."""
    async with client(server) as producer:
        both = b"".join(UIDS[:2])
        producer.send(run_of(stream, [b"a", b"b"], 1, key_partition=partition, uid=both, ts_producer=(5, LATEST)))
        epoch = (await producer.expect(Pushed)).epochs[1:]
        producer.send(run_of(stream, [b"c"], 2, ts_producer=(7,)))
        assert (await producer.expect(Pushed)).offsets == (3,)
    await publish(server, stream.decode(), "4", uid=ksuid_text(UIDS[2]))
    await publish(server, stream.decode(), "5", uid="not a KSUID")
    return epoch


def told(run: Run) -> list[Told]:
    uids = [run.uid[at : at + KSUID_BYTES] for at in range(0, len(run.uid), KSUID_BYTES)] or [b""] * run.count
    times = run.ts_producer or (0,) * run.count
    return [
        (run.offset + place, payload, uid, time, run.key_partition)
        for place, (payload, uid, time) in enumerate(zip(payloads_of(run), uids, times, strict=True))
    ]


async def heard(subscriber: BrokyClient, count: int) -> list[Told]:
    found: list[Told] = []
    while len(found) < count:
        found += told(await subscriber.expect(Run))
    return found


async def read(server: Address, stream: bytes) -> list[Told]:
    """By a `History`."""
    async with client(server) as reader:
        reader.send(History(7, stream))
        found: list[Told] = []
        while not isinstance(body := await reader.receive(), HistoryPage):
            assert isinstance(body, Run), body
            found += told(body)
        return found


async def replayed(server: Address, stream: bytes, epoch: bytes = b"", offset: int = 0) -> list[Told]:
    """By a subscription."""
    async with client(server) as subscriber:
        await subscriber.subscribe(stream, epoch, offset, history=not epoch)
        return await heard(subscriber, len(EXPECTED) - offset)


async def test_live_replayed_and_read_messages_have_what_their_producers_gave(server: RunningServer) -> None:
    stream = key()
    async with client(server) as subscriber:
        await subscriber.subscribe(stream)
        epoch = await push_all(server, stream)
        assert await heard(subscriber, len(EXPECTED)) == EXPECTED
    assert await replayed(server, stream) == EXPECTED
    assert await replayed(server, stream, epoch, 1) == EXPECTED[1:]
    assert await read(server, stream) == EXPECTED


async def test_a_repeated_uid_is_registered_once_and_another_partition_key_is_refused(server: RunningServer) -> None:
    stream = key()
    await push_all(server, stream)
    async with client(server) as producer:
        producer.send(run_of(stream, [b"again"], 1, uid=UIDS[2], ts_producer=(9,)))
        assert (await producer.expect(Pushed)).offsets == (4,)
        producer.send(run_of(stream, [b"x"], 2, key_partition=b"other"))
        assert (await producer.expect(Refused)).reason is Reason.PARTITION_CHANGED
    assert await read(server, stream) == EXPECTED


async def test_messages_without_any_come_in_the_same_frames_as_ever(server: RunningServer) -> None:
    stream = key()
    async with client(server) as subscriber:
        await subscriber.subscribe(stream)
        await publish(server, stream.decode(), '{"n":1}')
        run = await subscriber.expect(Run)
        assert run == Run(0, 1, 1, run.ts_broker, stream, epoch=run.epoch, payload=b'{"n":1}', format=Format.JSON)


async def test_text_clients_see_nothing_of_them(server: RunningServer) -> None:
    stream = key()
    async with cable(server) as browser:
        await browser.subscribe(stream.decode())
        await push_all(server, stream)
        live = await browser.messages_up_to(5)
    assert [each["message"] for each in live] == [{"$bytes": "YQ=="}, {"$bytes": "Yg=="}, {"$bytes": "Yw=="}, 4, 5]
    assert {frozenset(each) for each in live} == {frozenset({"identifier", "message", "stream_id", "epoch", "offset"})}


async def test_the_python_client_shows_them(server: RunningServer) -> None:
    stream = key()
    await push_all(server, stream)
    async with connect(f"tcp://127.0.0.1:{server.port}") as sdk:
        found: list[Told] = []
        async with asyncio.timeout(20):
            async for event in await sdk.subscribe(stream.decode(), since=0.0):
                assert isinstance(event, BrokyMessage), event
                found.append((event.offset, event.payload, event.uid, event.ts_producer, event.key_partition))
                if len(found) == len(EXPECTED):
                    break
    assert found == EXPECTED


@pytest.mark.parametrize("durability", ["memory", "journal"])
@pytest.mark.parametrize("workers", ["1", "2"])
async def test_they_outlive_a_restart_with_the_journal(tmp_path: Path, workers: str, durability: str) -> None:
    flags = ("--public", "--data_dir", str(tmp_path), "--durability", durability, "--workers", workers)
    stream = key()
    with running_server(*flags) as server:
        epoch = await push_all(server, stream)
        assert await read(server, stream) == EXPECTED
        assert server.stop() == 0
    with running_server(*flags) as server:
        assert await read(server, stream) == EXPECTED
        assert await replayed(server, stream, epoch, 2) == EXPECTED[2:]


@pytest.mark.parametrize("journal", [False, True], ids=["without a journal", "with a journal"])
async def test_they_move_with_their_shards_to_other_nodes_of_a_ring(journal: bool) -> None:
    """There the partition key is in the name."""
    streams = {b"{%b}/fields" % name.encode(): name.encode() for name in streams_of_all_shards()}
    expected = {stream: [(*said[:-1], partition) for said in EXPECTED] for stream, partition in streams.items()}
    with running_ring("ab", journal=journal) as ring:
        await ring.healthy()
        for stream, partition in streams.items():
            await push_all(ring.nodes["a"], stream, partition)
        ring.join("c")
        await ring.settled()
        await ring.change("b", {"remove": "a"})
        await ring.settled()
        for stream in streams:
            for node in ring.nodes.values():
                assert await read(node, stream) == expected[stream]
        if not journal:
            return
        for name in "bc":
            ring.kill(name)
            ring.start(name)
        await ring.healthy()
        for stream in streams:
            assert await read(ring.nodes["b"], stream) == expected[stream]


@pytest.mark.parametrize("broker", ["redis", "nats"])
async def test_they_come_through_a_broker_to_all_nodes(broker: str) -> None:
    stream = key()
    with ExitStack() as stack:
        if broker == "redis":
            flags = ("--broker", "redis", "--redis_url", stack.enter_context(redis_server()).url)
        else:
            flags = ("--broker", "nats", "--nats_servers", stack.enter_context(nats_server()).url)
        here, there = (stack.enter_context(running_server("--public", *flags)) for _ in range(2))
        async with client(there) as subscriber:
            await subscriber.subscribe(stream)
            await push_all(here, stream)
            assert await heard(subscriber, len(EXPECTED)) == EXPECTED
        assert await replayed(there, stream) == EXPECTED
        assert await read(there, stream) == EXPECTED

"""The producer's fields of a message (uid, ts_producer, key_partition) reach Broky subscribers of streams with history: live,
replayed, read, after a restart, from every process, node and broker."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from ropewalk.client.events import BrokyMessage
from ropewalk.protocol.broky.frames import Format, History, HistoryPage, Pushed, Reason, Refused, Run
from ropewalk.protocol.broky.ksuid import KSUID_BYTES, ksuid_text, new_ksuid
from ropewalk.protocol.broky.runs import build_run, split_payloads
from tests.broky_client import BrokyClient, client, new_key
from tests.cable import cable
from tests.ring.ring import running_ring, streams_of_all_shards
from tests.scenarios.python_clients import TCP
from tests.scenarios.shared_servers import ServerWith
from tests.server import Address, RunningServer, publish, running_server
from tests.services import nats_server, redis_server

PARTITION = b"\xfepart"
UIDS = [new_ksuid(number) for number in (1.0, 2.0, 3.0)]
LATEST = 2**64 - 1

Fields = tuple[int, bytes, bytes, int, bytes]

EXPECTED: list[Fields] = [
    (1, b"a", UIDS[0], 5, PARTITION),
    (2, b"b", UIDS[1], LATEST, PARTITION),
    (3, b"c", b"", 7, PARTITION),
    (4, b"4", UIDS[2], 0, PARTITION),
    (5, b"5", b"", 0, PARTITION),
]
"""Offset, payload, uid, ts_producer and key_partition of the messages that `push_all` sends."""


@pytest.fixture(scope="module")
def server(server_with: ServerWith, worker_flags: tuple[str, ...]) -> RunningServer:
    return server_with("--public", *worker_flags)


async def push_all(server: RunningServer, stream: bytes, partition: bytes = PARTITION) -> bytes:
    """Over TCP with and without each of the fields, and over HTTP. Returns the epoch."""
    async with client(server) as producer:
        both = b"".join(UIDS[:2])
        producer.send(build_run(stream, [b"a", b"b"], 1, key_partition=partition, uid=both, ts_producer=(5, LATEST)))
        epoch = (await producer.expect(Pushed)).epochs[1:]
        producer.send(build_run(stream, [b"c"], 2, ts_producer=(7,)))
        assert (await producer.expect(Pushed)).offsets == (3,)
    await publish(server, stream.decode(), "4", uid=ksuid_text(UIDS[2]))
    await publish(server, stream.decode(), "5", uid="not a KSUID")
    return epoch


def message_fields(run: Run) -> list[Fields]:
    uids = [run.uid[at : at + KSUID_BYTES] for at in range(0, len(run.uid), KSUID_BYTES)] or [b""] * run.count
    times = run.ts_producer or (0,) * run.count
    return [
        (run.offset + place, payload, uid, time, run.key_partition)
        for place, (payload, uid, time) in enumerate(zip(split_payloads(run), uids, times, strict=True))
    ]


async def live(subscriber: BrokyClient, count: int) -> list[Fields]:
    found: list[Fields] = []
    while len(found) < count:
        found += message_fields(await subscriber.expect(Run))
    return found


async def read(server: Address, stream: bytes) -> list[Fields]:
    """By a `History`."""
    async with client(server) as reader:
        reader.send(History(7, stream))
        runs, _ = await reader.until(HistoryPage)
        assert all(isinstance(run, Run) for run in runs), runs
        return [fields for run in runs if isinstance(run, Run) for fields in message_fields(run)]


async def replayed(server: Address, stream: bytes, epoch: bytes = b"", offset: int = 0) -> list[Fields]:
    """By a subscription."""
    async with client(server) as subscriber:
        await subscriber.subscribe(stream, epoch, offset, history=not epoch)
        return await live(subscriber, len(EXPECTED) - offset)


async def test_live_replayed_and_read_messages_have_the_fields(server: RunningServer) -> None:
    stream = new_key()
    async with client(server) as subscriber:
        await subscriber.subscribe(stream)
        epoch = await push_all(server, stream)
        assert await live(subscriber, len(EXPECTED)) == EXPECTED
    assert await replayed(server, stream) == EXPECTED
    assert await replayed(server, stream, epoch, 1) == EXPECTED[1:]
    assert await read(server, stream) == EXPECTED


async def test_repeated_uid_and_changed_partition_key_do_not_change_the_fields(server: RunningServer) -> None:
    stream = new_key()
    await push_all(server, stream)
    async with client(server) as producer:
        producer.send(build_run(stream, [b"again"], 1, uid=UIDS[2], ts_producer=(9,)))
        assert (await producer.expect(Pushed)).offsets == (4,)
        producer.send(build_run(stream, [b"x"], 2, key_partition=b"other"))
        assert (await producer.expect(Refused)).reason is Reason.PARTITION_CHANGED
    assert await read(server, stream) == EXPECTED


async def test_message_without_fields_has_the_defaults(server: RunningServer) -> None:
    stream = new_key()
    async with client(server) as subscriber:
        await subscriber.subscribe(stream)
        await publish(server, stream.decode(), '{"n":1}')
        run = await subscriber.expect(Run)
        assert run == Run(0, 1, 1, run.ts_broker, stream, epoch=run.epoch, payload=b'{"n":1}', format=Format.JSON)


async def test_websocket_clients_get_no_fields(server: RunningServer) -> None:
    stream = new_key()
    async with cable(server) as browser:
        await browser.subscribe(stream.decode())
        await push_all(server, stream)
        live = await browser.messages_up_to(5)
    assert [each["message"] for each in live] == [{"$bytes": "YQ=="}, {"$bytes": "Yg=="}, {"$bytes": "Yw=="}, 4, 5]
    assert {frozenset(each) for each in live} == {frozenset({"identifier", "message", "stream_id", "epoch", "offset"})}


async def test_python_client_returns_the_fields(server: RunningServer) -> None:
    stream = new_key()
    await push_all(server, stream)
    async with TCP.client(server) as sdk:
        found: list[Fields] = []
        async with asyncio.timeout(20):
            async for event in await sdk.subscribe(stream.decode(), since=0.0):
                assert isinstance(event, BrokyMessage), event
                found.append((event.offset, event.payload, event.uid, event.ts_producer, event.key_partition))
                if len(found) == len(EXPECTED):
                    break
    assert found == EXPECTED


@pytest.mark.parametrize(
    ("durability", "workers"),
    [
        ("journal", "1"),
        pytest.param("memory", "1", marks=pytest.mark.tier("all")),
        pytest.param("journal", "2", marks=pytest.mark.tier("all")),
        pytest.param("memory", "2", marks=pytest.mark.tier("all")),
    ],
)
async def test_journal_keeps_the_fields_across_a_restart(tmp_path: Path, workers: str, durability: str) -> None:
    flags = ("--public", "--data_dir", str(tmp_path), "--durability", durability, "--workers", workers)
    stream = new_key()
    with running_server(*flags) as server:
        epoch = await push_all(server, stream)
        assert await read(server, stream) == EXPECTED
        assert server.stop() == 0
    with running_server(*flags) as server:
        assert await read(server, stream) == EXPECTED
        assert await replayed(server, stream, epoch, 2) == EXPECTED[2:]


@pytest.mark.tier("all")
@pytest.mark.parametrize("journal", [False, True], ids=["without a journal", "with a journal"])
async def test_ring_moves_the_fields_with_their_shards(journal: bool) -> None:
    """In a ring the partition key is part of the name."""
    streams = {b"{%b}/fields" % name.encode(): name.encode() for name in streams_of_all_shards()}
    expected = {stream: [(*fields[:-1], partition) for fields in EXPECTED] for stream, partition in streams.items()}
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


@pytest.mark.tier("all")
@pytest.mark.parametrize("broker", ["redis", "nats"])
async def test_broker_passes_the_fields_to_other_nodes(broker: str) -> None:
    stream = new_key()
    with ExitStack() as stack:
        if broker == "redis":
            flags = ("--broker", "redis", "--redis_url", stack.enter_context(redis_server()).url)
        else:
            flags = ("--broker", "nats", "--nats_servers", stack.enter_context(nats_server()).url)
        here, there = (stack.enter_context(running_server("--public", *flags)) for _ in range(2))
        async with client(there) as subscriber:
            await subscriber.subscribe(stream)
            await push_all(here, stream)
            assert await live(subscriber, len(EXPECTED)) == EXPECTED
        assert await replayed(there, stream) == EXPECTED
        assert await read(there, stream) == EXPECTED

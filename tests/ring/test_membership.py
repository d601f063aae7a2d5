"""Nodes that join and leave a running ring: shards move, and clients miss nothing that is not declared lost."""

import asyncio

import aiohttp
import pytest

from ropewalk.protocol.broky.frames import Gap, Match, Subscribe, Subscribed
from tests.broky_client import client as broky_client
from tests.cable import cable
from tests.ring.load import Load, Receiver
from tests.ring.ring import CHANGES, Ring, running_ring, streams_of_all_shards, try_to_publish, until_published
from tests.server import publish

SOME_WITH_WORKERS = pytest.mark.parametrize(
    "workers", [{}, {"b": 2, "c": 2, "d": 2}], ids=["one process each", "some with workers"]
)


@SOME_WITH_WORKERS
async def test_clients_miss_nothing_while_a_node_joins_under_load_and_another_leaves(workers: dict[str, int]) -> None:
    streams = streams_of_all_shards()
    with running_ring("abc", workers=workers) as ring:
        await ring.healthy()
        async with cable(ring.nodes["a"]) as first, cable(ring.nodes["b"]) as second:
            for client in (first, second):
                for stream in streams:
                    await client.subscribe(stream)
            receivers = [Receiver(client) for client in (first, second)]
            load = Load(ring, "ab", streams)
            await asyncio.to_thread(ring.join, "d")
            await ring.healthy()
            await ring.settled()
            report = await ring.change("a", {"remove": "c"})
            assert report["term"] == 3
            await ring.settled()
            assert await asyncio.to_thread(ring.stop, "c") == 0
            await ring.change("b", {"remove": "c"})
            await ring.healthy()
            await load.end()
            for stream, positions in load.positions.items():
                assert len({epoch for epoch, _ in positions}) == 1
                assert sorted(offset for _, offset in positions) == list(range(1, len(positions) + 1)), stream
            for receiver in receivers:
                received = await receiver.receive(load.total)
                for stream in streams:
                    offsets = [frame["offset"] for frame in received[stream]]
                    assert offsets == list(range(1, len(load.positions[stream]) + 1)), stream


@SOME_WITH_WORKERS
async def test_shards_of_a_node_removed_as_lost_start_new_epochs_and_prefix_subscribers_are_notified(
    workers: dict[str, int],
) -> None:
    streams = streams_of_all_shards()
    with running_ring(workers=workers) as ring:
        await ring.healthy()
        a, c = ring.nodes["a"], ring.nodes["c"]
        async with broky_client(c) as subscriber:
            subscriber.send(Subscribe(1, b"", match=Match.PREFIX))
            await subscriber.expect(Subscribed)
            before = {stream: await publish(a, stream, "1") for stream in streams}
            await subscriber.messages(len(streams))
            ring.kill("b")
            await ring.unreached("b")
            change = {"remove": "b"}
            async with aiohttp.ClientSession(headers=CHANGES) as http, http.post(f"{a.url}/api/ring", json=change) as response:
                assert response.status == 409, await response.text()  # it needs `lost`
            await ring.change("a", {"remove": "b", "lost": True})
            assert (await subscriber.expect(Gap)).key == b""
            await ring.healthy()
            await ring.settled()
            changed = 0
            for stream in streams:
                after = await until_published(c, stream, "2")
                assert (after["epoch"] == before[stream]["epoch"]) is (after["offset"] == 2)
                changed += after["offset"] == 1
            assert 4 <= changed <= 6
            await subscriber.messages(len(streams))


async def _remove_and_restart(ring: Ring, name: str) -> None:
    await ring.change("a", {"remove": name})
    await ring.settled()
    ring.kill(name)
    await ring.change("a", {"remove": name})
    ring.start(name)
    await ring.healthy()
    await ring.settled()


async def test_removed_node_joins_again_when_it_starts_and_its_clients_miss_nothing() -> None:
    streams = streams_of_all_shards()
    with running_ring("abcd", journal=True) as ring:
        await ring.healthy()
        await _remove_and_restart(ring, "b")
        async with cable(ring.nodes["b"]) as client:
            for stream in streams:
                await client.subscribe(stream)
            await _remove_and_restart(ring, "d")
            async with aiohttp.ClientSession() as http:
                for node in ring.nodes.values():
                    async with http.get(f"{node.url}/api/ring") as response:
                        report = await response.json()
                    assert [member["owns"] for member in report["nodes"]] == [4, 4, 4, 4], report
            for name in "ab":
                for stream in streams:
                    assert (await try_to_publish(ring.nodes[name], stream, name))[0] == 201
            received = [await client.expect("message") for _ in range(2 * len(streams))]
            assert sorted((frame["stream_id"], frame["offset"]) for frame in received) == sorted(
                (stream, offset) for stream in streams for offset in (1, 2)
            )

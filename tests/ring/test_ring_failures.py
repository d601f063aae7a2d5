"""Nodes of a ring that die: what others see of it, and what is there when they come back."""

import asyncio
import contextlib
import time
from collections.abc import Callable

import aiohttp
import pytest

from ropewalk.protocol.broky.frames import Error, Gap, Hello, History, Match, Reason, Refused, Subscribe, Subscribed
from tests.broky_client import client as broky_client
from tests.broky_client import stranger
from tests.cable import Cable, cable
from tests.ring.ring import WITHIN, Ring, running_ring, streams_of_all_shards, try_to_publish
from tests.server import RunningServer, publish

SOME_WITH_WORKERS = pytest.mark.parametrize(
    "workers", [{}, {"b": 2, "c": 2, "d": 2}], ids=["one process each", "some with workers"]
)


async def until_published(node: RunningServer, stream: str, data: object) -> dict[str, object]:
    """Again as long as the server asks for that."""
    deadline = time.monotonic() + WITHIN
    while True:
        status, body = await try_to_publish(node, stream, data)
        if status == 201:
            position: dict[str, object] = body["publications"][0]
            return position
        assert (status, time.monotonic() < deadline) == (503, True), body
        await asyncio.sleep(0.1)


async def eventually(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def split(ring: Ring, name: str) -> tuple[list[str], list[str]]:
    """Streams that the node does not hold, and those that it holds."""
    streams = streams_of_all_shards()
    statuses = await asyncio.gather(*(try_to_publish(next(iter(ring.nodes.values())), stream, "?") for stream in streams))
    untouched = [stream for stream, (status, _) in zip(streams, statuses, strict=True) if status == 201]
    return untouched, [stream for stream in streams if stream not in untouched]


async def impairments(node: RunningServer) -> list[str]:
    async with aiohttp.ClientSession() as http, http.get(f"{node.url}/health") as response:
        assert response.status == 200
        found: list[str] = (await response.json()).get("impaired", [])
        return found


async def test_the_streams_of_other_nodes_go_on_while_one_is_dead() -> None:
    with running_ring() as ring:
        await ring.healthy()
        a = ring.nodes["a"]
        async with cable(a) as client:
            streams = streams_of_all_shards()
            for stream in streams:
                await client.subscribe(stream)
            for stream in streams:
                await publish(a, stream, "before")
            await client.messages(len(streams))
            ring.kill("b")
            untouched, lost = await split(ring, "b")
            assert 9 <= len(untouched) <= 12
            assert len(lost) == 16 - len(untouched)
            for _ in untouched:
                assert (await client.until("message", lambda frame: frame["message"] == "?"))["offset"] == 2
            assert await impairments(a) == ["the node b of the ring is not reached"]
            status, body = await try_to_publish(a, lost[0], "x")
            assert status == 503
            assert "b" in body["error"]
            async with broky_client(a) as reader:
                reader.send(History(1, lost[0].encode()))
                refused = await reader.expect(Refused)
                assert refused.reason is Reason.UNAVAILABLE
                assert refused.text == "the node b of the ring is not reached, which holds this"
            async with cable(ring.nodes["c"]) as other:
                await other.subscribe(untouched[0], history={"since": 1})


@SOME_WITH_WORKERS
async def test_a_node_that_comes_back_with_its_journal_has_everything_that_was_acknowledged(workers: dict[str, int]) -> None:
    with running_ring(journal=True, workers=workers) as ring:
        await ring.healthy()
        streams = streams_of_all_shards()
        before = {stream: await publish(ring.nodes["a"], stream, "1") for stream in streams}
        async with cable(ring.nodes["a"]) as client:
            for stream in streams:
                await client.subscribe(stream)
            ring.kill("b")
            ring.start("b")
            await ring.healthy()
            for stream in streams:
                after = await until_published(ring.nodes["c"], stream, "2")
                assert after == {**before[stream], "offset": 2}
            heard = [await client.expect("message") for _ in streams]
            assert sorted(frame["stream_id"] for frame in heard) == sorted(streams)


@SOME_WITH_WORKERS
async def test_a_node_that_comes_back_with_nothing_begins_new_epochs_and_clients_are_told(workers: dict[str, int]) -> None:
    with running_ring(workers=workers) as ring:
        await ring.healthy()
        streams = streams_of_all_shards()
        before = {stream: await publish(ring.nodes["a"], stream, "1") for stream in streams}
        async with cable(ring.nodes["a"]) as client:
            for stream in streams:
                await client.subscribe(stream)
            ring.kill("b")
            ring.start("b")
            await ring.healthy()
            anew = []
            for stream in streams:
                after = await until_published(ring.nodes["a"], stream, "2")
                if after["epoch"] == before[stream]["epoch"]:
                    assert after["offset"] == 2
                else:
                    assert after["offset"] == 1
                    anew.append(stream)
            assert 4 <= len(anew) <= 6
            told = set()
            messages = 0
            while messages < len(streams):
                frame = await client.next()
                if frame.get("type") == "reject_history":
                    told.add(frame["identifier"])
                else:
                    messages += frame["message"] == "2" or frame["message"] == 2
            assert len(told) == len(anew)


@SOME_WITH_WORKERS
async def test_sessions_and_members_outlive_the_node_that_their_client_was_on(workers: dict[str, int]) -> None:
    with running_ring("abc", "--presence_ttl", "5", workers=workers) as ring:
        await ring.healthy()  # every process has its links to all nodes
        await ring.settled()
        b = ring.nodes["b"]
        clients: dict[str, Cable] = {}
        holders: dict[str, str] = {}  # of their sessions
        async with contextlib.AsyncExitStack() as opened:
            while len(clients) < 12 or not {"b"} < set(holders.values()):
                client = await opened.enter_async_context(cable(b))
                await client.subscribe("room", presence={"id": str(len(clients))})
                clients[client.sid] = client
                holders[client.sid] = await holder_of(b, client.sid)
            ring.kill("b")
            await asyncio.gather(*(client.cut() for client in clients.values()))
        for sid, holder in holders.items():
            async with cable(ring.nodes["a"], welcome=False, sid=sid) as client:
                restored = bool((await client.expect("welcome")).get("restored"))
            assert restored is (holder != "b"), holders  # what the dead node kept itself is lost with it


async def holder_of(node: RunningServer, name: str) -> str:
    """The node that holds a stream or a session."""
    async with aiohttp.ClientSession() as http, http.get(f"{node.url}/api/ring", params={"stream": name}) as response:
        return str((await response.json())["place"]["holder"])


# --- a ring that changes ----------------------------------------------------------------------------------------------


class Load:
    """Publishers at some nodes, each with its own uids; and what they were answered."""

    def __init__(self, ring: Ring, names: str, streams: list[str]) -> None:
        self.positions: dict[str, list[tuple[str, int]]] = {stream: [] for stream in streams}
        self._ending = asyncio.Event()
        self._running = [asyncio.ensure_future(self._publish(ring.nodes[name], name)) for name in names]

    async def _publish(self, node: RunningServer, name: str) -> None:
        number = 0
        async with aiohttp.ClientSession() as http:
            while not self._ending.is_set():
                for stream in self.positions:
                    number += 1
                    body = {"stream": stream, "data": f"{name}{number}", "uid": f"{name}{number}"}
                    async with http.post(f"{node.url}/_broadcast", json=body) as response:
                        assert response.status == 201, await response.text()  # a pause, and no error
                        (position,) = (await response.json())["publications"]
                    self.positions[stream].append((position["epoch"], position["offset"]))

    async def end(self) -> None:
        self._ending.set()
        await asyncio.gather(*self._running)


@SOME_WITH_WORKERS
async def test_a_fourth_node_joins_under_load_and_a_node_leaves_and_nobody_misses_anything(workers: dict[str, int]) -> None:
    streams = streams_of_all_shards()
    with running_ring("abc", workers=workers) as ring:
        await ring.healthy()
        async with cable(ring.nodes["a"]) as first, cable(ring.nodes["b"]) as second:
            for client in (first, second):
                for stream in streams:
                    await client.subscribe(stream)
            load = Load(ring, "ab", streams)
            ring.join("d")
            await ring.healthy()
            await ring.settled()
            report = await ring.change("a", {"remove": "c"})
            assert report["term"] == 3
            await ring.settled()
            assert ring.stop("c") == 0
            await ring.change("b", {"remove": "c"})
            await ring.healthy()
            await load.end()
            total = sum(map(len, load.positions.values()))
            for stream, positions in load.positions.items():
                assert len({epoch for epoch, _ in positions}) == 1
                assert sorted(offset for _, offset in positions) == list(range(1, len(positions) + 1)), stream
            for client in (first, second):
                heard: dict[str, list[int]] = {stream: [] for stream in streams}
                for _ in range(total):
                    frame = await client.expect("message")
                    heard[frame["stream_id"]].append(frame["offset"])
                for stream in streams:
                    assert heard[stream] == list(range(1, len(load.positions[stream]) + 1)), stream


async def test_the_shards_of_a_node_that_is_removed_as_lost_begin_anew_and_it_does_not_come_back_by_itself() -> None:
    with running_ring() as ring:
        await ring.healthy()
        streams = streams_of_all_shards()
        before = {stream: await publish(ring.nodes["a"], stream, "1") for stream in streams}
        ring.kill("b")
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{ring.nodes['a'].url}/api/ring", json={"remove": "b"}) as response,
        ):
            assert response.status == 409, await response.text()  # not without saying that it is lost
        await ring.change("a", {"remove": "b", "lost": True})
        await ring.healthy()
        await ring.settled()
        anew = 0
        for stream in streams:
            after = await until_published(ring.nodes["c"], stream, "2")
            assert (after["epoch"] == before[stream]["epoch"]) is (after["offset"] == 2)
            anew += after["offset"] == 1
        assert 4 <= anew <= 6


@SOME_WITH_WORKERS
async def test_a_subscriber_by_prefix_is_told_of_a_node_that_does_not_come_back(workers: dict[str, int]) -> None:
    with running_ring(workers=workers) as ring:
        await ring.healthy()
        async with broky_client(ring.nodes["c"]) as subscriber:
            subscriber.send(Subscribe(1, b"", match=Match.PREFIX))
            await subscriber.expect(Subscribed)
            for stream in streams_of_all_shards():
                await publish(ring.nodes["a"], stream, "1")
            await subscriber.messages(len(streams_of_all_shards()))
            ring.kill("b")
            await ring.change("a", {"remove": "b", "lost": True})
            assert (await subscriber.expect(Gap)).key == b""
            await ring.healthy()
            for stream in streams_of_all_shards():
                await until_published(ring.nodes["c"], stream, "2")
            await subscriber.messages(len(streams_of_all_shards()))


async def taken_out_and_started_again(ring: Ring, name: str) -> None:
    await ring.change("a", {"remove": name})
    await ring.settled()
    ring.kill(name)
    await ring.change("a", {"remove": name})
    ring.start(name)
    await ring.healthy()
    await ring.settled()


async def test_a_node_that_was_taken_out_joins_again_when_it_starts_and_its_clients_miss_nothing() -> None:
    streams = streams_of_all_shards()
    with running_ring("abcd", journal=True) as ring:
        await ring.healthy()
        await taken_out_and_started_again(ring, "b")
        async with cable(ring.nodes["b"]) as client:
            for stream in streams:
                await client.subscribe(stream)
            await taken_out_and_started_again(ring, "d")
            async with aiohttp.ClientSession() as http:
                for node in ring.nodes.values():
                    async with http.get(f"{node.url}/api/ring") as response:
                        report = await response.json()
                    assert [member["owns"] for member in report["nodes"]] == [4, 4, 4, 4], report
            for name in "ab":
                for stream in streams:
                    assert (await try_to_publish(ring.nodes[name], stream, name))[0] == 201
            heard = [await client.expect("message") for _ in range(2 * len(streams))]
            assert sorted((frame["stream_id"], frame["offset"]) for frame in heard) == sorted(
                (stream, offset) for stream in streams for offset in (1, 2)
            )


async def test_clients_that_take_all_places_do_not_cut_a_node_off() -> None:
    with running_ring("abc", "--max_conn", "2") as ring:
        await ring.healthy()
        async with cable(ring.nodes["b"]), cable(ring.nodes["b"]):
            async with stranger(ring.nodes["b"]) as third:
                third.send(Hello())
                error = await third.expect(Error)
                assert (error.reason, error.reconnect) == (Reason.OVERFLOW, True)
            ring.kill("a")
            ring.start("a")
            await ring.healthy()
            for stream in streams_of_all_shards():
                await until_published(ring.nodes["a"], stream, "1")


async def test_what_reaches_nobody_because_its_holder_is_away_is_not_acknowledged_without_history_either() -> None:
    with running_ring("abc", "--history_limit", "0") as ring:
        await ring.healthy()
        streams = streams_of_all_shards()
        for stream in streams:
            assert (await try_to_publish(ring.nodes["a"], stream, "1"))[0] == 201
        ring.kill("c")
        statuses = await asyncio.gather(*(try_to_publish(ring.nodes["a"], stream, "2") for stream in streams))
        transient = await asyncio.gather(
            *(try_to_publish(ring.nodes["a"], stream, "3", meta={"transient": True}) for stream in streams)
        )
        for answers in (statuses, transient):
            assert 4 <= [status for status, _ in answers].count(503) <= 6
            assert {status for status, _ in answers} == {201, 503}

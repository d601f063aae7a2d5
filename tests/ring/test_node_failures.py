"""Nodes of a ring that die: what clients of other nodes see, and what remains when the node is back."""

import asyncio
import contextlib
import os
import signal
from typing import Any

import aiohttp
import pytest

from ropewalk.protocol.broky.frames import Error, Hello, History, Reason, Refused
from tests.broky_client import client as broky_client
from tests.broky_client import stranger
from tests.cable import Cable, cable
from tests.process_tree import keeper
from tests.ring.ring import SECONDS, SHARDS, holder_of, running_ring, streams_of_all_shards, try_to_publish, until_published
from tests.server import RunningServer, publish

SOME_WITH_WORKERS = pytest.mark.parametrize("workers", [{}, {"b": 2, "c": 2}], ids=["one process each", "some with workers"])


async def statuses_of(node: RunningServer, streams: list[str], data: str, **extra: Any) -> list[int]:
    """Publish to all streams at once; returns the status of each response."""
    answers = await asyncio.gather(*(try_to_publish(node, stream, data, **extra) for stream in streams))
    return [status for status, _ in answers]


async def test_streams_of_other_nodes_continue_while_one_node_is_dead() -> None:
    streams = streams_of_all_shards()
    with running_ring() as ring:
        await ring.healthy()
        a = ring.nodes["a"]
        async with cable(a) as client, aiohttp.ClientSession() as http:
            for stream in streams:
                await client.subscribe(stream)
            for stream in streams:
                await publish(a, stream, "before")
            await client.messages(len(streams))
            holders = {stream: await holder_of(a, stream) for stream in streams}
            ring.kill("b")
            statuses = await statuses_of(a, streams, "after")
            assert statuses == [503 if holders[stream] == "b" else 201 for stream in streams]
            lost = [stream for stream in streams if holders[stream] == "b"]
            available = [stream for stream in streams if stream not in lost]
            assert 4 <= len(lost) <= 6
            for _ in available:
                assert (await client.until("message", lambda frame: frame["message"] == "after"))["offset"] == 2
            await ring.unreached("b")
            async with http.get(f"{a.url}/health") as response:
                assert response.status == 200
                assert (await response.json())["impaired"] == ["the node b of the ring is not reached"]
            status, body = await try_to_publish(a, lost[0], "x")
            assert status == 503
            assert "b" in body["error"]
            async with broky_client(a) as reader:
                reader.send(History(1, lost[0].encode()))
                refused = await reader.expect(Refused)
                assert refused.reason is Reason.UNAVAILABLE
                assert refused.text == "the node b of the ring is not reached, which holds this"
            async with cable(ring.nodes["c"]) as other:
                await other.subscribe(available[0], history={"since": 1})


@SOME_WITH_WORKERS
async def test_node_that_restarts_with_its_journal_has_all_acknowledged_messages(workers: dict[str, int]) -> None:
    streams = streams_of_all_shards()
    with running_ring(journal=True, workers=workers) as ring:
        await ring.healthy()
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
            received = [await client.expect("message") for _ in streams]
            assert sorted(frame["stream_id"] for frame in received) == sorted(streams)


@SOME_WITH_WORKERS
async def test_node_that_restarts_empty_starts_new_epochs_and_clients_are_notified(workers: dict[str, int]) -> None:
    streams = streams_of_all_shards()
    with running_ring(workers=workers) as ring:
        await ring.healthy()
        before = {stream: await publish(ring.nodes["a"], stream, "1") for stream in streams}
        async with cable(ring.nodes["a"]) as client:
            for stream in streams:
                await client.subscribe(stream)
            ring.kill("b")
            ring.start("b")
            await ring.healthy()
            changed = 0
            for stream in streams:
                after = await until_published(ring.nodes["a"], stream, "2")
                if after["epoch"] == before[stream]["epoch"]:
                    assert after["offset"] == 2
                else:
                    assert after["offset"] == 1
                    changed += 1
            assert 4 <= changed <= 6
            notified = set()
            messages = 0
            while messages < len(streams):
                frame = await client.next()
                if frame.get("type") == "reject_history":
                    notified.add(frame["identifier"])
                else:
                    messages += frame["message"] in ("2", 2)
            assert len(notified) == changed


@SOME_WITH_WORKERS
async def test_sessions_and_members_outlive_the_node_of_their_client(workers: dict[str, int]) -> None:
    with running_ring("abc", "--presence_ttl", "300", workers=workers) as ring:
        await ring.healthy()  # each process has its links to all nodes
        await ring.settled()
        a, b = ring.nodes["a"], ring.nodes["b"]
        rooms = {await holder_of(a, f"room{number}"): f"room{number}" for number in range(100)}
        room = rooms["c"]
        clients: dict[str, Cable] = {}
        holders: dict[str, str] = {}  # of their sessions
        async with contextlib.AsyncExitStack() as stack:
            while len(clients) < 12 or not {"b"} < set(holders.values()):
                client = await stack.enter_async_context(cable(b))
                await client.subscribe(room, presence={"id": str(len(clients))})
                clients[client.sid] = client
                holders[client.sid] = await holder_of(b, client.sid)
            ring.kill("b")
            await asyncio.gather(*(client.cut() for client in clients.values()))
        async with aiohttp.ClientSession() as http, http.get(f"{a.url}/api/presence/{room}/users") as response:
            assert response.status == 200, await response.text()
            present = {record["id"] for record in (await response.json())["records"]}
        assert present == {str(number) for number in range(len(clients))}
        restored = dict(zip(holders, await asyncio.gather(*(is_restored(a, sid) for sid in holders)), strict=True))
        # The sessions that the dead node held are lost with it.
        assert restored == {sid: holder != "b" for sid, holder in holders.items()}


async def is_restored(node: RunningServer, sid: str) -> bool:
    async with cable(node, welcome=False, sid=sid) as client:
        return bool((await client.expect("welcome")).get("restored"))


@SOME_WITH_WORKERS
async def test_paused_node_is_detected_and_its_streams_return_when_it_resumes(workers: dict[str, int]) -> None:
    """With workers the store process is paused."""
    streams = streams_of_all_shards()
    with running_ring("ab", workers=workers) as ring:
        await ring.healthy()
        a, paused = ring.nodes["a"], keeper(ring.nodes["b"])
        for stream in streams:
            assert (await try_to_publish(a, stream, "1"))[0] == 201
        os.kill(paused, signal.SIGSTOP)
        try:
            # Calls to it time out. From then on the other node does not wait for it.
            statuses = await statuses_of(a, streams, "2")
            assert sorted(set(statuses)) == [201, 503]
            lost = streams[statuses.index(503)]
            async with asyncio.timeout(SECONDS):
                while "not reached" not in (await try_to_publish(a, lost, "3"))[1].get("error", ""):
                    pass
        finally:
            os.kill(paused, signal.SIGCONT)
        await ring.healthy()
        for stream in streams:
            assert (await try_to_publish(a, stream, "4"))[0] == 201


async def test_clients_that_use_all_connections_do_not_lock_out_a_node() -> None:
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


async def test_message_whose_holder_is_dead_is_not_acknowledged_without_history_either() -> None:
    streams = streams_of_all_shards()
    with running_ring("abc", "--history_limit", "0") as ring:
        await ring.healthy()
        a = ring.nodes["a"]
        for stream in streams:
            assert (await try_to_publish(a, stream, "1"))[0] == 201
        ring.kill("c")
        for extra in ({}, {"meta": {"transient": True}}):
            statuses = await statuses_of(a, streams, "2", **extra)
            assert 4 <= statuses.count(503) <= 6
            assert statuses.count(201) == SHARDS - statuses.count(503)

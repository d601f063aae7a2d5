"""Nodes of a ring that find each other by leases: they come, die and come back."""

import asyncio
import re
import shutil
import signal
import time

import aiohttp
import pytest

from ropewalk.cli.main import main
from ropewalk.protocol.broky.frames import Gap, Reason, Run
from tests import broky_client
from tests.broky_client import BrokyClient
from tests.cable import Cable, cable
from tests.ring.leased_ring import LEASED_WITHIN, leased_ring
from tests.ring.ring import FLAGS, SHARDS, streams_of_all_shards, try_to_publish, until_published
from tests.server import RunningServer, running_server
from tests.services import RedisServer, free_port


async def health(node: RunningServer) -> tuple[int, str]:
    async with aiohttp.ClientSession() as http, http.get(f"{node.url}/health") as response:
        return response.status, await response.text()


async def until_health(node: RunningServer, status: int, *words: str) -> None:
    deadline = time.monotonic() + LEASED_WITHIN
    while (said := await health(node))[0] != status or not all(word in said[1] for word in words):
        assert time.monotonic() < deadline, (said, node.log())
        await asyncio.sleep(0.05)


async def positions(node: RunningServer, data: str) -> dict[str, dict[str, object]]:
    return {stream: await until_published(node, stream, data) for stream in streams_of_all_shards()}


async def test_nodes_started_at_once_form_one_ring_and_a_fourth_joins() -> None:
    with leased_ring("abc", store="nats") as ring:
        await ring.are_one("abc")
        before = await positions(ring.nodes["a"], "1")
        ring.start_all("d")
        await ring.are_one("abcd")
        for stream, after in (await positions(ring.nodes["d"], "2")).items():
            assert after == {**before[stream], "offset": 2}
        assert sum("founding a ring" in node.log() for node in ring.nodes.values()) == 1


# --- death ------------------------------------------------------------------------------------------------------------


async def told_over_web_socket(client: Cable, messages: int) -> int:
    """How many streams have another epoch, until the messages are there."""
    told = 0
    while messages:
        frame = await client.next()
        told += frame.get("type") == "reject_history"
        messages -= frame.get("message") == 2
    return told


async def told_over_tcp(client: BrokyClient, messages: int) -> int:
    told = 0
    while messages:
        match await client.receive():
            case Gap(reason=reason):
                assert reason is Reason.EPOCH_CHANGED
                told += 1
            case Run(count=count):
                messages -= count
            case other:
                raise AssertionError(other)
    return told


async def test_shards_of_a_dead_node_without_a_journal_start_new_epochs_at_other_nodes() -> None:
    with leased_ring("abc", "--workers", "2") as ring:
        await ring.are_one("abc")
        a = ring.nodes["a"]
        before = await positions(a, "1")
        async with cable(a) as web, broky_client.client(a) as tcp:
            for stream in before:
                await web.subscribe(stream)
                await tcp.subscribe(stream.encode())
            ring.kill("b")
            await ring.are_one("ac")
            after = await positions(ring.nodes["c"], "2")
            anew = [stream for stream in before if after[stream]["epoch"] != before[stream]["epoch"]]
            assert all(after[stream]["offset"] == (1 if stream in anew else 2) for stream in after)
            assert 4 <= len(anew) <= 6
            assert await told_over_web_socket(web, len(before)) == len(anew)
            assert await told_over_tcp(tcp, len(before)) == len(anew)
        await until_health(a, 200, '{"status":"ok"}')  # a worker hears of it a moment later


async def test_stopped_node_without_a_journal_leaves_the_ring_and_joins_again_when_it_starts() -> None:
    with leased_ring("abc", store="nats") as ring:
        await ring.are_one("abc")
        before = await positions(ring.nodes["a"], "1")
        assert ring.stop("b") == 0
        await ring.are_one("ac")
        assert any("a node was stopped and had no journal" in ring.nodes[name].log() for name in "ac")
        assert not any("does not renew its lease" in ring.nodes[name].log() for name in "ac")
        after = await positions(ring.nodes["a"], "2")
        anew = [stream for stream in before if after[stream]["epoch"] != before[stream]["epoch"]]
        assert 4 <= len(anew) <= 6
        logged = "".join(ring.nodes[name].log() for name in "ac")
        assert sum(map(int, re.findall(r"lost with their node begin empty here.* shards=(\d+)", logged))) == len(anew)
        ring.start("b")
        await ring.are_one("abc")
        for stream, then in (await positions(ring.nodes["b"], "3")).items():
            assert then == {**after[stream], "offset": 2 if stream in anew else 3}


@pytest.mark.parametrize(("store", "end"), [("redis", "kill"), ("nats", "stop")])
async def test_ring_waits_for_a_node_with_a_journal_which_returns_with_its_epochs(store: str, end: str) -> None:
    with leased_ring("abc", journals="b", store=store) as ring:
        await ring.are_one("abc")
        before = await positions(ring.nodes["a"], "1")
        term = (await ring.report(ring.nodes["a"])).term
        getattr(ring, end)("b")
        for name in "ac":
            await until_health(ring.nodes[name], 200, "b does not renew its lease, and what it holds may be in its journal")
        ring.start("b")
        await ring.are_one("abc")
        for stream, after in (await positions(ring.nodes["a"], "2")).items():
            assert after == {**before[stream], "offset": 2}
        assert (await ring.report(ring.nodes["b"])).term == term


async def test_live_node_that_was_declared_lost_joins_again() -> None:
    with leased_ring("abc") as ring:
        await ring.are_one("abc")
        before = await positions(ring.nodes["a"], "1")
        b = ring.nodes["b"]
        b.process.send_signal(signal.SIGSTOP)
        try:
            await ring.are_one("ac")
            await positions(ring.nodes["a"], "2")
        finally:
            b.process.send_signal(signal.SIGCONT)
        await ring.are_one("abc")
        after = await positions(b, "3")
        for stream in before:
            assert after[stream]["offset"] == (3 if after[stream]["epoch"] == before[stream]["epoch"] else 2)


async def test_second_process_of_a_node_waits_and_reports_why_until_the_first_ends() -> None:
    with leased_ring("a") as ring:
        await ring.are_one("a")
        port = free_port()
        flags = [*FLAGS, *ring.discovery("a", ""), "--ring_node", "a", "--port", str(port), "--journal_shards", str(SHARDS)]
        with running_server(*flags) as twin:
            await until_health(twin, 503, "another process is the node a")
            assert (await health(ring.nodes["a"])) == (200, '{"status":"ok"}')
            ring.kill("a")
            await until_health(twin, 200)
            await positions(twin, "1")


@pytest.mark.parametrize(
    ("flags", "reason", "logged"),
    [
        (("--journal_shards", "8"), "have the same --journal_shards", "waiting to join the ring reason="),
        (("--secret", "another"), "the same --secret", "the node a of the ring is not reached reason="),
    ],
    ids=["shards", "secret"],
)
async def test_node_that_its_ring_refuses_reports_why(
    flags: tuple[str, ...], reason: str, logged: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with leased_ring("a") as ring:
        await ring.are_one("a")
        own = ("--ring_node", "b", "--port", str(free_port()), "--journal_shards", str(SHARDS))
        with running_server(*FLAGS, *ring.discovery("b", ""), *own, *flags) as stranger:
            await until_health(stranger, 503, reason)
            assert reason in (await ring.report(stranger)).waits_for
            assert await asyncio.to_thread(main, ["ring", "--url", stranger.url]) == 0
            shown = capsys.readouterr().out
            assert ("b waits for its ring: " in shown, reason in shown, "unavailable" in shown) == (True, True, False), shown
            assert stranger.log().count(logged) == 1, stranger.log()


# --- a store that is away ---------------------------------------------------------------------------------------------


async def test_node_that_waits_for_the_store_logs_the_wait_and_its_end_once() -> None:
    with leased_ring("a") as ring:
        await ring.are_one("a")
        ring.kill("a")
        ring.store.kill()
        a = ring.start("a")
        await until_health(a, 503, "Redis is not reached")
        assert a.log().count("waiting for Redis, by which nodes of the ring find each other reason=") == 1, a.log()
        ring.store.start()
        await ring.are_one("a")
        assert a.log().count("waiting for Redis") == 1, a.log()
        assert a.log().count("Redis is reached, by which nodes of the ring find each other") == 1, a.log()


async def test_ring_works_without_the_store_and_loses_no_node_when_it_returns_empty() -> None:
    with leased_ring("abc") as ring:
        await ring.are_one("abc")
        before = await positions(ring.nodes["a"], "1")
        term = (await ring.report(ring.nodes["a"])).term
        ring.store.kill()
        for node in ring.nodes.values():
            await until_health(node, 200, "Redis is not reached")
        await positions(ring.nodes["b"], "2")
        shutil.rmtree(ring.store.home / "appendonlydir", ignore_errors=True)
        ring.store.home.joinpath("appendonly.aof").unlink(missing_ok=True)
        ring.store.start()
        ring.start_all("d")  # finds no record, and the ring all the same
        await ring.are_one("abcd")
        for stream, after in (await positions(ring.nodes["d"], "3")).items():
            assert after == {**before[stream], "offset": 3}
        assert (await ring.report(ring.nodes["a"])).term == term + 1


async def test_node_that_reaches_neither_the_store_nor_half_of_its_ring_refuses_publications() -> None:
    with leased_ring("ab") as ring:
        await ring.are_one("ab")
        a = ring.nodes["a"]
        ring.store.kill()
        ring.kill("b")
        deadline = time.monotonic() + LEASED_WITHIN
        streams = streams_of_all_shards()
        refused = 0
        while refused < len(streams):  # also those that it holds itself
            assert time.monotonic() < deadline
            answers = await asyncio.gather(*(try_to_publish(a, stream, "1") for stream in streams))
            refused = sum(status == 503 for status, _ in answers)
        assert any("may go on without it" in body["error"] for _, body in answers)
        ring.store.start()
        await ring.are_one("a")
        await positions(a, "2")


# --- all of them ------------------------------------------------------------------------------------------------------


async def test_ring_without_journals_is_founded_again_after_all_nodes_ended() -> None:
    with leased_ring("abc") as ring:
        await ring.are_one("abc")
        before = await positions(ring.nodes["a"], "1")
        ring.end()
        ring.nodes.clear()
        ring.start_all("bc")
        await ring.are_one("bc")
        for stream, after in (await positions(ring.nodes["c"], "2")).items():
            assert after["offset"] == 1
            assert after["epoch"] != before[stream]["epoch"]


async def test_ring_whose_journals_are_lost_is_founded_again_once_its_record_is_removed() -> None:
    with leased_ring("a", journals="a") as ring:
        await ring.are_one("a")
        ring.lose("a")
        ring.start_all("d")
        await until_health(ring.nodes["d"], 503, "a had a journal", "remove the key rw:{ring}:record in Redis")
        assert isinstance(ring.store, RedisServer)
        ring.store.ask("DEL", "rw:{ring}:record")
        await ring.are_one("d")
        await positions(ring.nodes["d"], "1")


async def test_new_node_founds_no_ring_while_journals_of_the_ring_may_return() -> None:
    with leased_ring("abc", journals="ab") as ring:
        await ring.are_one("abc")
        before = await positions(ring.nodes["c"], "1")
        held = {node.name: node.holds for node in (await ring.report(ring.nodes["a"])).nodes}
        ring.end()
        ring.nodes.clear()
        ring.start_all("d")
        await until_health(ring.nodes["d"], 503, "a, b had a journal", "record in Redis")
        ring.start("a")
        ring.start("b")
        await ring.are_one("abd")
        after = await positions(ring.nodes["d"], "2")
        kept = [stream for stream in before if after[stream] == {**before[stream], "offset": 2}]
        assert len(kept) == held["a"] + held["b"]

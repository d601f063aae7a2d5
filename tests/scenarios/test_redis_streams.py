"""The broadcaster redisx over a real Redis: whatever dies meanwhile, each entry is registered once."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from ropewalk.adapters.apps.jwt import issue
from tests.broadcasts import healthy, kept, numbers, publication, unhealthy, until
from tests.cable import cable
from tests.metrics import metrics, metrics_when
from tests.server import running_server
from tests.services import RedisServer, redis_server

KEY, GROUP = "__anycable__", "bx"
DEAD_MILLISECONDS = 60_000
FLOOD = 10_000
JWT_SECRET = "for tokens, thirty-two bytes long"


@pytest.fixture
def store() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


def client(store: RedisServer) -> Any:
    return redis.Redis(port=store.port)


def flags(store: RedisServer, *more: str) -> tuple[str, ...]:
    return ("--public", "--broadcast_adapter=redisx", "--redis_url", store.url, *more)


def journal(directory: Path) -> tuple[str, ...]:
    """With history enough for all of a flood."""
    return ("--data_dir", str(directory), "--history_limit=1000000")


def send(at: Any, *payloads: str | bytes) -> None:
    pipeline = at.pipeline(transaction=True)  # so that one read brings all of them
    for payload in payloads:
        pipeline.xadd(KEY, {"payload": payload})
    pipeline.execute()


async def all_taken(at: Any) -> None:
    await until(lambda: at.xlen(KEY) == 0, "every entry is registered and deleted")


async def test_entries_from_before_the_first_start_count_and_all_are_in_order(store: RedisServer) -> None:
    at = client(store)
    send(at, *(publication(number) for number in range(3)))
    with running_server(*flags(store)) as server:
        await all_taken(at)
        async with cable(server) as reader:
            history = await reader.subscribe("news", history={"since": 1})
            send(at, publication(3))
            live = await reader.messages_up_to(4)

    assert numbers([*history, *live]) == [0, 1, 2, 3]
    assert [message["offset"] for message in [*history, *live]] == [1, 2, 3, 4]


async def test_batches_meta_uids_and_orders_are_those_of_publishing_over_http(store: RedisServer) -> None:
    at = client(store)
    with running_server(*flags(store)) as server:
        async with cable(server) as first, cable(server) as second:
            for reader in (first, second):
                await reader.subscribe("news", history={"since": 1})
            batch = [json.loads(publication(number)) for number in range(2)]
            send(at, json.dumps(batch), publication(2, meta={"exclude_socket": second.sid, "broadcast_type": "note"}))
            send(at, publication(3, uid="mine"), publication(3, uid="mine"), publication(4, meta={"transient": True}))
            send(at, publication(5))
            heard = [await first.next() for _ in range(6)]
            without = await second.messages(5)
            counted = await metrics(server)
        await all_taken(at)

    assert numbers(heard) == [0, 1, 2, 3, 4, 5]
    assert [frame.get("offset") for frame in heard] == [1, 2, 3, 4, None, 5]
    assert heard[2]["type"] == "note"
    assert [message["n"] for message in without] == [0, 1, 3, 4, 5]
    assert counted["publications_duplicate_total"] == 1


async def test_an_order_to_disconnect_is_obeyed_in_its_turn(store: RedisServer) -> None:
    at = client(store)
    token = issue(JWT_SECRET, "user/1")
    jwt = ("--jwt_secret", JWT_SECRET, "--public_streams", "--broadcast_adapter=redisx", "--redis_url", store.url)
    with running_server(*jwt) as server:
        async with cable(server, params={"jid": token}) as leaver:
            await leaver.subscribe("news", history={"since": 1})
            order = {"command": "disconnect", "payload": {"identifier": "user/1", "reconnect": False}}
            send(at, publication(0), json.dumps(order), publication(1))
            told = [await leaver.next(), await leaver.next()]
        await all_taken(at)
        counted = await metrics(server)

    assert numbers(told[:1]) == [0]
    assert told[1] == {"type": "disconnect", "reason": "remote", "reconnect": False}
    assert (counted["remote_disconnects_total"], counted["publications_total"]) == (1, 2)


async def test_what_cannot_be_used_is_counted_and_costs_the_others_nothing(store: RedisServer) -> None:
    at = client(store)
    send(at, publication(0, partition_key="a"), "no JSON", b"\xff\xfe", publication(1, partition_key="b"))
    at.xadd(KEY, {"other": "field"})
    send(at, publication(2), json.dumps({"stream": "news", "data": "x" * 3000}), json.dumps([]), publication(3))
    with running_server(*flags(store, "--max_publish_size=2000")) as server:
        await all_taken(at)
        counted = await metrics(server)
        messages = await kept(server)
        log = server.log()

    assert numbers(messages) == [0, 2, 3]
    assert counted["publications_refused_total"] == 6
    assert "a broadcast is dropped, for it cannot be used broadcaster=redisx" in log
    assert log.count("a broadcast is dropped") == 1  # a flood of them is not a flood of lines


async def test_what_a_node_registered_and_could_not_acknowledge_is_registered_once(store: RedisServer, tmp_path: Path) -> None:
    """Killed between reading and acknowledging; another node takes the entries over."""
    at = client(store)
    at.execute_command("ACL", "SETUSER", "default", "-xack")
    send(at, *(publication(number) for number in range(5)))
    with running_server(*flags(store, *journal(tmp_path), "--node_id=first")) as first:
        await metrics_when(first, lambda counted: counted["publications_total"] == 5)
        await unhealthy(first, "broadcaster redisx")
        first.kill()
    assert [pending["consumer"] for pending in at.xpending_range(KEY, GROUP, "-", "+", 10)] == [b"first"] * 5
    at.execute_command("ACL", "SETUSER", "default", "+xack")
    entries = [entry for entry, _ in at.xrange(KEY)]
    at.xclaim(KEY, GROUP, "first", 0, entries, idle=DEAD_MILLISECONDS, justid=True)  # as if a minute had passed
    with running_server(*flags(store, *journal(tmp_path), "--node_id=second")) as second:
        await all_taken(at)
        counted = await metrics(second)
        messages = await kept(second)

    assert numbers(messages) == [0, 1, 2, 3, 4]
    assert counted["broadcasts_claimed_total"] == counted["publications_duplicate_total"] == 5
    assert counted["publications_total"] == 0


async def test_entries_of_a_dead_consumer_are_taken_over_and_those_of_a_living_one_are_not(store: RedisServer) -> None:
    at = client(store)
    at.xgroup_create(KEY, GROUP, "0", mkstream=True)
    send(at, publication(0))
    [[_, [(dead, _)]]] = at.xreadgroup(GROUP, "dead", {KEY: ">"})
    at.xclaim(KEY, GROUP, "dead", 0, [dead], idle=DEAD_MILLISECONDS, justid=True)
    send(at, publication(1))
    at.xreadgroup(GROUP, "alive", {KEY: ">"})
    with running_server(*flags(store)) as server:
        await until(lambda: at.xlen(KEY) == 1, "the entry of the dead one is registered")
        send(at, publication(2))
        await until(lambda: at.xlen(KEY) == 1, "the new entry too")
        messages = await kept(server)

    assert numbers(messages) == [0, 2]
    assert [pending["consumer"] for pending in at.xpending_range(KEY, GROUP, "-", "+", 10)] == [b"alive"]


async def test_a_deleted_entry_that_is_still_pending_is_let_go(store: RedisServer) -> None:
    at = client(store)
    at.xgroup_create(KEY, GROUP, "0", mkstream=True)
    send(at, publication(0), publication(1))
    [[_, entries]] = at.xreadgroup(GROUP, "me", {KEY: ">"})
    at.xdel(KEY, entries[0][0])
    with running_server(*flags(store, "--node_id=me")) as server:
        await all_taken(at)
        messages = await kept(server)
        await until(lambda: at.xpending(KEY, GROUP)["pending"] == 0, "nothing is pending")

    assert numbers(messages) == [1]


async def test_redis_is_killed_and_comes_back(store: RedisServer) -> None:
    at = client(store)
    with running_server(*flags(store)) as server:
        send(at, publication(0))
        await all_taken(at)
        await healthy(server)
        store.kill()
        await unhealthy(server, "broadcaster redisx")
        assert (await metrics(server))["broadcasters_down"] == 1
        store.start()
        send(at, publication(1))
        await all_taken(at)
        await healthy(server)
        messages = await kept(server)

    assert numbers(messages) == [0, 1]


async def test_redis_that_stands_still_is_noticed_and_nothing_is_lost_or_doubled(store: RedisServer) -> None:
    at = client(store)
    with running_server(*flags(store, "--redisx_read_block_milliseconds=100")) as server:
        send(at, publication(0))
        await all_taken(at)
        store.pause()
        await unhealthy(server, "broadcaster redisx")
        store.resume()
        send(at, publication(1))
        await all_taken(at)
        await healthy(server)
        messages = await kept(server)

    assert numbers(messages) == [0, 1]


async def test_redis_that_is_not_there_at_the_start_is_waited_for(store: RedisServer) -> None:
    store.stop()
    with running_server(*flags(store)) as server:
        await unhealthy(server, "broadcaster redisx")
        store.start()
        at = client(store)
        await healthy(server)
        send(at, publication(0))
        await all_taken(at)
        assert server.stop() == 0


async def test_a_group_or_a_stream_that_was_deleted_is_made_again(store: RedisServer) -> None:
    at = client(store)
    with running_server(*flags(store)) as server:
        send(at, publication(0))
        await all_taken(at)
        at.xgroup_destroy(KEY, GROUP)
        send(at, publication(1))
        await all_taken(at)
        at.delete(KEY)
        send(at, publication(2))
        await all_taken(at)
        messages = await kept(server)

    assert numbers(messages) == [0, 1, 2]


async def test_a_flood_during_which_the_server_is_killed_is_registered_once_and_in_order(
    store: RedisServer, tmp_path: Path
) -> None:
    at = client(store)
    kills, half = 5, 1000

    async def flood(start: int) -> None:
        for first in range(start, start + half, 50):
            send(at, *(publication(number) for number in range(first, first + 50)))
            await asyncio.sleep(0)

    sent = 0
    for _ in range(kills):
        await flood(sent)
        with running_server(*flags(store, *journal(tmp_path))) as server:
            flooding = asyncio.create_task(flood(sent + half))
            await metrics_when(server, lambda counted: counted["publications_total"] > 0)
            server.kill()
            await flooding
        sent += 2 * half
    with running_server(*flags(store, *journal(tmp_path))) as server:
        await all_taken(at)
        messages = await kept(server)

    assert sent == FLOOD
    assert numbers(messages) == list(range(FLOOD))
    assert [message["offset"] for message in messages] == list(range(1, FLOOD + 1))
    assert len({message["epoch"] for message in messages}) == 1


async def test_a_server_that_ends_amid_a_flood_leaves_nothing_half_done(store: RedisServer, tmp_path: Path) -> None:
    at = client(store)
    sent = 0

    with running_server(*flags(store, *journal(tmp_path))) as server:
        stopping = None
        while stopping is None or not stopping.done():
            send(at, *(publication(number) for number in range(sent, sent + 50)))
            sent += 50
            if stopping is None and (await metrics(server))["publications_total"] > 0:
                stopping = asyncio.create_task(asyncio.to_thread(server.stop))
            await asyncio.sleep(0.001)
        assert stopping.result() == 0
    assert at.xpending(KEY, GROUP)["pending"] == 0
    assert at.xinfo_consumers(KEY, GROUP) == []
    left = at.xlen(KEY)
    with running_server(*flags(store, *journal(tmp_path))) as server:
        await all_taken(at)
        counted = await metrics(server)
        messages = await kept(server)

    assert numbers(messages) == list(range(sent))
    assert (counted["publications_total"], counted["publications_duplicate_total"]) == (left, 0)

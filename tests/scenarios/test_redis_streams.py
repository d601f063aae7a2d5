"""The broadcaster redisx over a real Redis: each entry is published once, also after crashes."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from ropewalk.adapters.apps.authenticators import issue_token
from tests.broadcasts import kept, numbers, publication
from tests.cable import cable
from tests.metrics import metrics, metrics_when
from tests.server import RunningServer, running_server
from tests.services import RedisServer, redis_server
from tests.waiting import healthy, unhealthy, until

KEY, GROUP = "__anycable__", "bx"
DEAD_MILLISECONDS = 60_000
JWT_SECRET = "for tokens, thirty-two bytes long"


class Store:
    """A database of a Redis: the flags of a server that reads its stream, and a client."""

    def __init__(self, redis_server: RedisServer, number: int) -> None:
        self.redis = redis_server
        self.at: Any = redis.Redis(port=redis_server.port, db=number)
        self.flags = ("--broadcast_adapter=redisx", "--redis_url", f"{redis_server.url}/{number}")


@pytest.fixture(scope="module")
def redis_process() -> Iterator[RedisServer]:
    with redis_server() as process:
        yield process


@pytest.fixture
def store(redis_process: RedisServer) -> Iterator[Store]:
    """An empty database for the servers of one test."""
    store = Store(redis_process, 1)
    store.at.flushdb()
    yield store
    store.at.close()


EARLY = "early"  # its first messages were sent before the first start


@pytest.fixture(scope="module")
def shared(redis_process: RedisServer) -> Iterator[Store]:
    """The database of the server that tests share."""
    store = Store(redis_process, 0)
    send(store.at, *(publication(number, EARLY) for number in range(3)))
    yield store
    store.at.close()


@pytest.fixture(scope="module")
def server(shared: Store) -> Iterator[RunningServer]:
    with running_server("--public", "--max_publish_size=2000", *shared.flags) as server:
        yield server


def journal(directory: Path) -> tuple[str, ...]:
    """With a history that holds every message of a flood."""
    return ("--public", "--data_dir", str(directory), "--history_limit=1000000")


def send(at: Any, *payloads: str | bytes) -> None:
    pipeline = at.pipeline(transaction=True)  # so that one read brings all of them
    for payload in payloads:
        pipeline.xadd(KEY, {"payload": payload})
    pipeline.execute()


def milliseconds(time: tuple[int, int]) -> int:
    """Of an answer to TIME."""
    return time[0] * 1000 + time[1] // 1000


async def all_taken(at: Any) -> None:
    await until(lambda: at.xlen(KEY) == 0, "every entry is published and deleted")


async def test_entries_sent_before_the_first_start_are_published_in_order(server: RunningServer, shared: Store) -> None:
    await all_taken(shared.at)
    async with cable(server) as reader:
        history = await reader.subscribe(EARLY, history={"since": 1})
        send(shared.at, publication(3, EARLY))
        live = await reader.messages_up_to(4)

    assert numbers([*history, *live]) == [0, 1, 2, 3]
    assert [message["offset"] for message in [*history, *live]] == [1, 2, 3, 4]


async def test_batches_meta_and_uids_work_as_in_publishing_over_http(server: RunningServer, shared: Store) -> None:
    duplicates = (await metrics(server))["publications_duplicate_total"]
    async with cable(server) as first, cable(server) as second:
        for reader in (first, second):
            await reader.subscribe("news", history={"since": 1})
        batch = [json.loads(publication(number)) for number in range(2)]
        send(shared.at, json.dumps(batch), publication(2, meta={"exclude_socket": second.sid, "broadcast_type": "note"}))
        send(shared.at, publication(3, uid="mine"), publication(3, uid="mine"), publication(4, meta={"transient": True}))
        send(shared.at, publication(5))
        received = [await first.next() for _ in range(6)]
        without = await second.messages(5)
        counted = await metrics(server)
    await all_taken(shared.at)

    assert numbers(received) == [0, 1, 2, 3, 4, 5]
    assert [frame.get("offset") for frame in received] == [1, 2, 3, 4, None, 5]
    assert received[2]["type"] == "note"
    assert [message["n"] for message in without] == [0, 1, 3, 4, 5]
    assert counted["publications_duplicate_total"] == duplicates + 1


async def test_invalid_entries_are_counted_and_the_others_are_published(server: RunningServer, shared: Store) -> None:
    refused = (await metrics(server))["publications_refused_total"]
    send(
        shared.at,
        publication(0, "valid", partition_key="a"),
        "no JSON",
        b"\xff\xfe",
        publication(1, "valid", partition_key="b"),
    )
    shared.at.xadd(KEY, {"other": "field"})
    too_large = json.dumps({"stream": "valid", "data": "x" * 3000})
    send(shared.at, publication(2, "valid"), too_large, json.dumps([]), publication(3, "valid"))
    await all_taken(shared.at)

    assert numbers(await kept(server, "valid")) == [0, 2, 3]
    assert (await metrics(server))["publications_refused_total"] == refused + 6
    assert "invalid broadcast dropped broadcaster=redisx" in server.log()
    assert server.log().count("invalid broadcast dropped") == 1  # the warning is rate limited


async def test_deleted_group_or_stream_is_created_again(server: RunningServer, shared: Store) -> None:
    send(shared.at, publication(0, "deleted"))
    await all_taken(shared.at)
    shared.at.xgroup_destroy(KEY, GROUP)
    send(shared.at, publication(1, "deleted"))
    await all_taken(shared.at)
    shared.at.delete(KEY)
    # A new stream may repeat ids of the deleted one within the millisecond, and an id stands for a uid.
    deleted = shared.at.time()
    await until(lambda: milliseconds(shared.at.time()) > milliseconds(deleted), "the next millisecond")
    send(shared.at, publication(2, "deleted"))
    await all_taken(shared.at)
    assert numbers(await kept(server, "deleted")) == [0, 1, 2]


async def test_disconnect_command_is_executed_in_its_turn(store: Store) -> None:
    token = issue_token(JWT_SECRET, "user/1")
    with running_server("--jwt_secret", JWT_SECRET, "--public_streams", *store.flags) as server:
        async with cable(server, params={"jid": token}) as leaver:
            await leaver.subscribe("news", history={"since": 1})
            command = {"command": "disconnect", "payload": {"identifier": "user/1", "reconnect": False}}
            send(store.at, publication(0), json.dumps(command), publication(1))
            received = [await leaver.next(), await leaver.next()]
        await all_taken(store.at)
        counted = await metrics(server)

    assert numbers(received[:1]) == [0]
    assert received[1] == {"type": "disconnect", "reason": "remote", "reconnect": False}
    assert (counted["remote_disconnects_total"], counted["publications_total"]) == (1, 2)


async def test_pending_entries_of_dead_consumers_are_claimed_and_deleted_ones_dropped(store: Store) -> None:
    at = store.at
    at.xgroup_create(KEY, GROUP, "0", mkstream=True)
    send(at, publication(0))
    [[_, [(dead, _)]]] = at.xreadgroup(GROUP, "dead", {KEY: ">"})
    at.xclaim(KEY, GROUP, "dead", 0, [dead], idle=DEAD_MILLISECONDS, justid=True)
    send(at, publication(1))
    at.xreadgroup(GROUP, "alive", {KEY: ">"})
    send(at, publication(2), publication(3))
    [[_, own]] = at.xreadgroup(GROUP, "me", {KEY: ">"})
    at.xdel(KEY, own[0][0])
    with running_server("--public", *store.flags, "--node_id=me") as server:
        await until(lambda: at.xlen(KEY) == 1, "the entries of the dead consumer and its own are published")
        send(at, publication(4))
        await until(lambda: at.xlen(KEY) == 1, "the new entry too")
        messages = await kept(server)
        await until(lambda: at.xpending(KEY, GROUP)["pending"] == 1, "the deleted entry is not pending")

    assert sorted(numbers(messages)) == [0, 3, 4]
    assert [pending["consumer"] for pending in at.xpending_range(KEY, GROUP, "-", "+", 10)] == [b"alive"]


# --- outages ----------------------------------------------------------------------------------------------------------


@pytest.mark.tier("all")
async def test_entries_that_a_killed_node_did_not_acknowledge_are_published_once(store: Store, tmp_path: Path) -> None:
    """Killed between reading and acknowledging; another node claims the entries."""
    at = store.at
    at.execute_command("ACL", "SETUSER", "default", "-xack")
    send(at, *(publication(number) for number in range(5)))
    with running_server(*store.flags, *journal(tmp_path), "--node_id=first") as first:
        await metrics_when(first, lambda counted: counted["publications_total"] == 5)
        await unhealthy(first, "broadcaster redisx")
        first.kill()
    assert [pending["consumer"] for pending in at.xpending_range(KEY, GROUP, "-", "+", 10)] == [b"first"] * 5
    at.execute_command("ACL", "SETUSER", "default", "+xack")
    entries = [entry for entry, _ in at.xrange(KEY)]
    at.xclaim(KEY, GROUP, "first", 0, entries, idle=DEAD_MILLISECONDS, justid=True)  # as if a minute had passed
    with running_server(*store.flags, *journal(tmp_path), "--node_id=second") as second:
        await all_taken(at)
        counted = await metrics(second)
        messages = await kept(second)

    assert numbers(messages) == [0, 1, 2, 3, 4]
    assert counted["broadcasts_claimed_total"] == counted["publications_duplicate_total"] == 5
    assert counted["publications_total"] == 0


@pytest.mark.tier("all")
async def test_broadcaster_reconnects_after_every_outage_of_redis(store: Store) -> None:
    """Redis is not there at the start, is killed, and hangs. No message is lost or published twice."""
    at = store.at
    store.redis.stop()
    with running_server("--public", *store.flags, "--redisx_read_block_milliseconds=100") as server:
        await unhealthy(server, "broadcaster redisx")
        store.redis.start()
        await healthy(server)
        send(at, publication(0))
        await all_taken(at)
        store.redis.kill()
        await unhealthy(server, "broadcaster redisx")
        assert (await metrics(server))["broadcasters_down"] == 1
        store.redis.start()
        send(at, publication(1))
        await all_taken(at)
        await healthy(server)
        store.redis.pause()
        await unhealthy(server, "broadcaster redisx")
        store.redis.resume()
        send(at, publication(2))
        await all_taken(at)
        await healthy(server)
        assert numbers(await kept(server)) == [0, 1, 2]
        assert server.stop() == 0


@pytest.mark.tier("all")
async def test_flood_is_published_once_and_in_order_though_the_server_is_killed(store: Store, tmp_path: Path) -> None:
    at = store.at
    kills, half = 3, 1000

    async def flood(start: int) -> None:
        for first in range(start, start + half, 50):
            send(at, *(publication(number) for number in range(first, first + 50)))
            await asyncio.sleep(0)

    sent = 0
    for _ in range(kills):
        await flood(sent)
        with running_server(*store.flags, *journal(tmp_path)) as server:
            flooding = asyncio.create_task(flood(sent + half))
            await metrics_when(server, lambda counted: counted["publications_total"] > 0)
            server.kill()
            await flooding
        sent += 2 * half
    with running_server(*store.flags, *journal(tmp_path)) as server:
        await all_taken(at)
        messages = await kept(server)

    assert numbers(messages) == list(range(sent))
    assert [message["offset"] for message in messages] == list(range(1, sent + 1))
    assert len({message["epoch"] for message in messages}) == 1


@pytest.mark.tier("all")
async def test_server_that_stops_during_a_flood_leaves_no_pending_entries(store: Store, tmp_path: Path) -> None:
    at = store.at
    sent = 0

    with running_server(*store.flags, *journal(tmp_path)) as server:
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
    with running_server(*store.flags, *journal(tmp_path)) as server:
        await all_taken(at)
        counted = await metrics(server)
        messages = await kept(server)

    assert numbers(messages) == list(range(sent))
    assert (counted["publications_total"], counted["publications_duplicate_total"]) == (left, 0)

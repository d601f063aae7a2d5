"""The Redis backend during crashes, pauses and lost connections of a real Redis: what it keeps, and which losses it reports."""

import asyncio
import logging
import random
from pathlib import Path

import pytest
from redis.asyncio import Redis

from ropewalk.adapters.backends.redis import RedisBackend
from ropewalk.connections.redis import RedisAddress
from ropewalk.core.stats import Stats
from ropewalk.engine.broker import Broker
from ropewalk.model.errors import Unavailable
from ropewalk.model.history import Gap, GapReason, Replay
from ropewalk.model.messages import Position, Publication, RemoteDisconnect, expand_runs
from ropewalk.model.presence import Member
from ropewalk.model.sessions import EndRequest, SessionSnapshot, SessionTaken, SessionWrite
from ropewalk.ports import NodeName
from ropewalk.testing.backend_feed import Process
from ropewalk.testing.clock import ManualClock
from tests.cluster.redis_nodes import (
    LEASE,
    PRESENCE,
    RULES,
    TTL,
    WITHIN,
    OlderFiles,
    persist,
    position,
    register,
    running,
    written,
)
from tests.services import RedisServer, redis_server
from tests.waiting import until

# --- restarts --------------------------------------------------------------------------------------------------------


async def test_crash_of_redis_with_an_append_only_file_keeps_positions_and_uids(redis: RedisServer) -> None:
    async with running(redis) as backend:
        before = await register(backend, 1, 100)
        await written(redis)
        redis.kill()
        redis.start()
        after = await register(backend, 100, 101)
        assert [position(after[0]), after[0].duplicate] == [position(before[-1]), True]
        assert position(after[1]) == Position(before[0].epoch, 101)


async def test_restart_without_data_begins_new_epochs() -> None:
    with redis_server("--appendonly", "no") as redis:
        async with running(redis) as backend:
            before = await register(backend, 1, 5)
            redis.kill()
            redis.start()
            answer = await persist(lambda: backend.streams.replay("s", position(before[-1])))
            assert isinstance(answer, Gap)
            assert answer.reason is GapReason.EPOCH_CHANGED
            after = await register(backend, 6, 6)
            assert after[0].offset == 1
            assert after[0].epoch != before[0].epoch


async def test_lost_tail_begins_new_epochs_and_repeats_no_position(redis: RedisServer, tmp_path: Path) -> None:
    older = OlderFiles(redis, tmp_path)
    async with running(redis) as backend:
        before = await register(backend, 1, 90)
        await older.save()
        tail = await register(backend, 91, 100)
        assert {receipt.epoch for receipt in before + tail} == {before[0].epoch}
        older.restore()
        answer = await persist(lambda: backend.streams.replay("s", position(tail[-1])))
        assert isinstance(answer, Gap)
        assert answer.reason is GapReason.EPOCH_CHANGED
        again = await register(backend, 90, 91)
        assert position(again[0]) == position(before[-1])  # its uid was kept
        assert again[1].epoch != before[0].epoch
        assert (again[1].offset, again[1].duplicate) == (1, False)


@pytest.mark.parametrize("messages", [True, False], ids=["with-messages", "without-messages"])
async def test_sessions_and_members_whose_end_was_lost_expire_with_the_former_lease(
    redis: RedisServer, tmp_path: Path, messages: bool
) -> None:
    """The older files have the lease, under the same number. Without a lost message the epochs stay the same."""
    older, clock = OlderFiles(redis, tmp_path), ManualClock()
    async with running(redis, clock=clock) as node, running(redis, "two", clock=clock) as other:
        before = await register(node, 1, 90)
        lease = (await node.leases.renew(LEASE, ())).lease
        await write(node, "ended", 1)
        await write(node, "live", 2)
        await node.presence.join("s", "ended", Member("bo"))
        await node.presence.join("s", "live", Member("cy"))
        await older.save()
        assert (await node.leases.renew(LEASE, ())).lease == lease
        await write(node, "ended", 3, live=False)
        assert [event.type for event in await node.presence.leave("s", "ended")] == ["leave"]
        if messages:
            await register(node, 91, 100)
        older.restore()
        assert (await persist(lambda: node.leases.renew(LEASE, ()))).lease != lease
        assert ((await register(node, 101, 101))[0].epoch != before[0].epoch) is messages
        assert await members(other) == ["bo", "cy"]
        for seconds in (LEASE - 1, LEASE - 1, PRESENCE):
            await write(node, "live", 4)
            await node.presence.join("s", "live", Member("cy"))
            clock.advance(seconds)
            await node.leases.renew(LEASE, ())
            await other.sweep()
        assert [event.member.id for event in await other.presence.expire()] == ["bo"]
        assert await members(other) == ["cy"]
        clock.advance(TTL)
        await node.leases.renew(LEASE, ())
        await other.sweep()
        assert [sid for sid, _ in await other.sessions.take_expired(10)] == ["ended"]


async def write(node: RedisBackend, sid: str, version: int, live: bool = True) -> None:
    session = SessionWrite(sid, SessionSnapshot(sid, {}), version, TTL, live, began=1.0)
    assert await node.leases.write([session]) == []


async def members(node: RedisBackend) -> list[str]:
    return [member.id for member in (await node.presence.members("s", "", 10)).members]


async def test_pending_disconnects_of_a_node_survive_a_restart_of_redis(redis: RedisServer) -> None:
    clock = ManualClock()
    async with running(redis, clock=clock) as node, running(redis, "two", clock=clock) as other:
        lease = (await node.leases.renew(60.0, ())).lease
        await write(node, "sid", 1)
        await other.sessions.revoke("sid", True)
        await written(redis)
        redis.kill()
        redis.start()
        renewal = await persist(lambda: node.leases.renew(60.0, ()))
        assert renewal.lease != lease
        assert renewal.taken == (SessionTaken("sid", revoked=True),)
        assert (await node.leases.renew(60.0, ["sid"])).taken == ()


async def test_node_that_reconnects_late_reveals_a_lost_tail(redis: RedisServer, tmp_path: Path) -> None:
    """The other node has registered messages meanwhile, at positions that the late one knows for other messages."""
    older = OlderFiles(redis, tmp_path)
    async with running(redis) as early, running(redis, "two") as late:
        before = await register(early, 1, 90)
        await older.save()
        await register(late, 91, 100)
        older.restore()
        assert position((await register(early, 101, 101))[0]) == Position(before[0].epoch, 91)
        after = await register(late, 102, 102)
        assert after[0].epoch != before[0].epoch
        assert after[0].offset == 1
        assert await early.streams.tip("s") == position(after[0])


async def test_restart_epochs_begins_a_new_epoch_at_every_restart(redis: RedisServer) -> None:
    async with running(redis, restart_epochs=True) as backend:
        before = await register(backend, 1, 3)
        redis.kill()
        redis.start()
        after = await register(backend, 4, 4)
        assert after[0].offset == 1
        assert after[0].epoch != before[0].epoch


async def test_epoch_survives_a_restart_of_redis_and_all_nodes_only_with_appendfsync_always() -> None:
    for fsync, kept in (("everysec", False), ("always", True)):
        with redis_server("--appendonly", "yes", "--appendfsync", fsync) as redis:
            async with running(redis) as backend:
                before = await register(backend, 1, 3)
            redis.kill()
            redis.start()
            async with running(redis, "two") as backend:
                after = await register(backend, 4, 4)
            assert (after[0].epoch == before[0].epoch) is kept


# --- outages ---------------------------------------------------------------------------------------------------------


async def test_backend_starts_while_redis_is_down_and_is_unhealthy(redis: RedisServer) -> None:
    redis.kill()
    async with running(redis) as backend:
        assert "Redis cannot be reached" in backend.health()
        with pytest.raises(Unavailable):
            await backend.streams.append([Publication("s", b"1")])
        with pytest.raises(Unavailable):
            await backend.sweep()
        redis.start()
        assert [receipt.offset for receipt in await register(backend, 1, 2)] == [1, 2]
        assert backend.health() == ""


async def test_publications_to_a_paused_redis_are_registered_once(redis: RedisServer) -> None:
    async with running(redis) as backend:
        broker = Broker(backend.streams, backend.feed, Stats(), lambda: 0.0, random.random)
        await broker.publish([Publication("s", b"0")])
        redis.pause()
        publishing = [asyncio.ensure_future(broker.publish([Publication("s", b"%d" % number)])) for number in range(1, 21)]
        await until(lambda: "does not answer" in backend.health())
        redis.resume()
        async with asyncio.timeout(WITHIN):
            receipts = [receipt for [receipt] in await asyncio.gather(*publishing)]
        assert sorted(receipt.offset for receipt in receipts) == list(range(2, 22))
        answer = await backend.streams.replay("s", Position("", 0))
        assert isinstance(answer, Replay)
        assert sorted(int(message.payload) for message in answer.messages) == list(range(21))


async def test_publication_fails_with_a_clear_error_while_redis_refuses_writes(redis: RedisServer) -> None:
    async with running(redis) as backend, Redis.from_url(redis.url) as client:
        await register(backend, 1, 1)
        await client.config_set("min-replicas-to-write", 1)
        await refused(backend)
        await client.config_set("min-replicas-to-write", 0)
        await client.config_set("maxmemory", 1)
        await refused(backend)
        await client.config_set("maxmemory", 0)
        await client.script_flush()
        assert (await register(backend, 2, 2))[0].offset == 2
        assert backend.health() == ""


async def refused(backend: RedisBackend) -> None:
    """The refusal is in the health report for some seconds, although Redis answers reads."""
    async with asyncio.timeout(WITHIN):
        while True:
            with pytest.raises(Unavailable, match="Redis refuses"):
                await backend.streams.append([Publication("s", b"2")])
            await backend.streams.tip("s")
            if "refuses" in backend.health():
                return


# --- the feed -------------------------------------------------------------------------------------------------------


async def test_disconnects_reach_a_node_whose_connection_was_down(redis: RedisServer) -> None:
    received: list[EndRequest] = []

    async def obey(order: EndRequest) -> int:
        received.append(order)
        return 0

    async def ignore(order: EndRequest) -> int:
        return 0

    async with running(redis) as giver, running(redis, "two") as taker:
        await giver.feed.start(lambda messages: None, ignore)
        await giver.feed.disconnect(RemoteDisconnect("before"))
        await taker.feed.start(lambda messages: None, obey)
        await taker.feed.listen("s")
        await giver.feed.disconnect(RemoteDisconnect("one"))
        await until(lambda: len(received) == 1)
        working = taker.feed._subscribers[0]._connect
        down = asyncio.Event()

        async def refused() -> object:
            down.set()
            raise ConnectionRefusedError

        taker.feed._subscribers[0]._connect = refused  # type: ignore[assignment]
        await cut_subscribers(redis)
        await down.wait()
        missed = [RemoteDisconnect(f"two {number}", reconnect=False) for number in range(20)]
        for order in missed:  # several in one millisecond
            await giver.feed.disconnect(order)
        assert "listened" in taker.feed.health()
        listening = asyncio.ensure_future(persist(lambda: taker.feed.listen("s")))
        await giver.feed.disconnect(RemoteDisconnect("three"))
        assert not listening.done()
        taker.feed._subscribers[0]._connect = working
        await listening
        await until(lambda: len(received) == 22)
        assert received == [RemoteDisconnect("one"), *missed, RemoteDisconnect("three")]


async def cut_subscribers(redis: RedisServer) -> None:
    async with Redis.from_url(redis.url) as client:
        await client.client_kill_filter(_type="pubsub")


# --- settings and names ----------------------------------------------------------------------------------------------


async def test_redis_settings_that_lose_data_are_logged_as_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "ropewalk.redis")
    for options, expected in (
        (("--appendonly", "yes", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"), ["drops keys"]),
        (("--appendonly", "yes", "--maxmemory", "100mb"), []),
        (("--appendonly", "no"), ["append-only file"]),
    ):
        caplog.clear()
        with redis_server(*options) as redis:
            async with running(redis):
                warnings = [record.getMessage() for record in caplog.records]
        assert len(warnings) == len(expected)
        assert all(word in warning for word, warning in zip(expected, warnings, strict=True))


ODD = ["a:b", "a", "", " ", "1", "2:ab", "\0", "a\0b", "ä€😀", "{0}", "x" * 1024, "%s", "[a*]?"]


async def test_names_of_any_shape_do_not_collide(redis: RedisServer) -> None:
    async with running(redis) as backend:
        batch = [
            Publication(stream or "-", b"1", uid=uid, partition_key=stream) for stream in ODD for uid in [*ODD, "c"] if uid
        ]
        batch += [Publication("a", b"1", uid="b:c"), Publication("a:b", b"1", uid="c2")]
        first = await backend.streams.append(batch)
        assert [receipt.duplicate for receipt in first] == [False] * len(batch)
        again = await backend.streams.append(batch)
        assert [(receipt.duplicate, position(receipt)) for receipt in again] == [(True, position(each)) for each in first]
        names = sorted({publication.stream for publication in batch})
        assert [summary.stream for summary in await backend.streams.summaries("", 100)] == names
        assert [await backend.streams.partition_key(name) for name in names if name != "-"] == [
            name for name in names if name != "-"
        ]


async def test_large_numbers_stay_exact(redis: RedisServer) -> None:
    far = 10**14 + 1
    async with running(redis) as backend, Redis.from_url(redis.url) as client:
        await register(backend, 1, 1)
        await client.hset("rw:{0}:m:s", "o", far)
        await client.hset("rw:{0}:x", "s", far)
        receipts = await register(backend, 2, 4)
        assert [receipt.offset for receipt in receipts] == [far + 1, far + 2, far + 3]
        sequences = [2**62, 2**62 + 1, 2**62]
        answers = [
            (await backend.streams.append([Publication("s", b"1", producer="p", sequence=sequence)]))[0]
            for sequence in sequences
        ]
        assert [answer.duplicate for answer in answers] == [False, False, True]
        assert answers[2].offset == answers[0].offset
        replay = await backend.streams.replay("s", position(receipts[0]))
        assert [message.offset for message in replay.messages] == [far + number for number in range(2, 6)]
        assert (await register(backend, 3, 3))[0].offset == far + 2


async def test_two_databases_of_one_redis_are_separate(redis: RedisServer) -> None:
    received: list[bytes] = []
    orders: list[EndRequest] = []

    async def obey(order: EndRequest) -> int:
        orders.append(order)
        return 0

    backends = [RedisBackend(RULES, RedisAddress(f"{redis.url}/{database}"), NodeName("one", "one")) for database in (0, 1)]
    for backend in backends:
        await backend.start()
    here, there = backends
    await here.feed.start(lambda messages: received.extend(message.payload for message in expand_runs(messages)), obey)
    await here.feed.listen("s")
    await there.streams.append([Publication("s", b"there", transient=True), Publication("s", b"there")])
    await there.feed.disconnect(RemoteDisconnect("there"))
    await here.streams.append([Publication("s", b"here")])
    await until(lambda: b"here" in received)
    assert (received, orders) == ([b"here"], [])
    for backend in backends:
        await backend.stop()


async def test_foreign_messages_on_our_channels_are_ignored(redis: RedisServer) -> None:
    async with running(redis) as backend, Redis.from_url(redis.url) as client:
        here = await Process().start(backend)
        await backend.feed.listen("s")
        for channel in ("c:s", "orders", "to:one"):
            await client.publish(f"rw:{{0}}:{channel}", b"\xffnonsense")
        await register(backend, 1, 1)
        await until(lambda: len(here.messages) == 1)
        assert backend.feed.health() == ""


async def test_thousands_of_subscriptions_are_restored_together(redis: RedisServer) -> None:
    streams = [f"s{number}" for number in range(3000)]
    async with running(redis) as backend:

        async def listen_to_all() -> None:
            await asyncio.gather(*(persist(lambda stream=stream: backend.feed.listen(stream)) for stream in streams))  # type: ignore[misc]

        here = await Process().start(backend)
        await listen_to_all()
        await cut_subscribers(redis)
        await until(lambda: backend.feed.health() != "")
        await listen_to_all()
        await backend.streams.append([Publication(stream, b"1") for stream in streams])
        await until(lambda: len(here.messages) == len(streams))
        for stream in streams[1:]:
            backend.feed.unlisten(stream)
        async with Redis.from_url(redis.url) as client:
            async with asyncio.timeout(WITHIN):
                while len(await client.pubsub_channels("rw:{0}:c:*")) > 1:
                    await asyncio.sleep(0.02)
        assert backend.feed.health() == ""

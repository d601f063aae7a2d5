"""What the Redis backend keeps over crashes, pauses and lost connections of a real Redis, and what it says that it lost."""

import asyncio
import logging
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from redis.asyncio import Redis

from ropewalk.adapters.backends.redis import RedisBackend
from ropewalk.connections.redis import RedisAddress
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.engine.broker import Broker
from ropewalk.model.errors import Unavailable
from ropewalk.model.history import Gap, GapReason, Replay
from ropewalk.model.messages import Position, Publication, Receipt, RemoteDisconnect, one_by_one
from ropewalk.model.presence import Member
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import SessionSnapshot, SessionTaken, SessionWanted, SessionWrite
from ropewalk.ports import Clock
from ropewalk.testing.backend_feed import Process
from ropewalk.testing.clock import ManualClock
from tests.services import RedisServer, redis_server

AOF = ("--appendonly", "yes", "--appendfsync", "everysec")
RULES = Rulebook(StreamRules(history_limit=1000, history_ttl=300.0))
WITHIN = 60.0
LEASE = 6.0
PRESENCE = 2.0
TTL = 10.0

Answer = TypeVar("Answer")


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server(*AOF) as server:
        yield server


@asynccontextmanager
async def running(
    redis: RedisServer, node: str = "one", restart_epochs: bool = False, clock: Clock | None = None
) -> AsyncIterator[RedisBackend]:
    backend = RedisBackend(
        RULES, RedisAddress(redis.url), node, restart_epochs=restart_epochs, presence_ttl=PRESENCE, clock=clock
    )
    await backend.start()
    try:
        yield backend
    finally:
        await backend.stop()


async def persist(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """As whoever calls the backend does: again, until Redis is there."""
    async with asyncio.timeout(WITHIN):
        while True:
            try:
                return await ask()
            except Unavailable:
                await asyncio.sleep(0.05)


async def register(backend: RedisBackend, first: int, last: int, stream: str = "s") -> list[Receipt]:
    batch = [Publication(stream, b"%d" % number, uid=f"u{number}") for number in range(first, last + 1)]
    return await persist(lambda: backend.streams.append(batch))


def position(receipt: Receipt) -> Position:
    return Position(receipt.epoch, receipt.offset)


async def written(redis: RedisServer) -> None:
    """Everything so far is in the file. With `everysec` Redis answers before it writes, while it waits for a slow disk."""
    async with Redis.from_url(redis.url) as client:
        await client.config_set("appendfsync", "always")
        await client.set("written", 1)
        await client.config_set("appendfsync", "everysec")


# --- restarts --------------------------------------------------------------------------------------------------------


async def test_a_crash_of_redis_with_an_append_only_file_changes_nothing(redis: RedisServer) -> None:
    async with running(redis) as backend:
        before = await register(backend, 1, 100)
        await written(redis)
        redis.kill()
        redis.start()
        after = await register(backend, 100, 101)
        assert [position(after[0]), after[0].duplicate] == [position(before[-1]), True]
        assert position(after[1]) == Position(before[0].epoch, 101)


async def test_a_restart_that_lost_everything_begins_new_epochs() -> None:
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


class OlderFiles:
    """What Redis has written so far, to be put in the place of what it writes later."""

    def __init__(self, redis: RedisServer, place: Path) -> None:
        self._redis = redis
        self._place = place

    async def keep(self) -> None:
        await written(self._redis)
        _copy(self._redis.home, self._place)

    def put_back(self) -> None:
        """Redis crashes, and comes back with them."""
        self._redis.kill()
        for path in _files(self._redis.home):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        _copy(self._place, self._redis.home)
        self._redis.start()


def _files(home: Path) -> list[Path]:
    return [path for path in home.iterdir() if path.name.startswith("appendonly")]


def _copy(source: Path, target: Path) -> None:
    for path in _files(source):
        if path.is_dir():
            shutil.copytree(path, target / path.name)
        else:
            shutil.copy(path, target / path.name)


async def test_a_redis_that_lost_its_newest_writes_gives_no_position_twice(redis: RedisServer, tmp_path: Path) -> None:
    older = OlderFiles(redis, tmp_path)
    async with running(redis) as backend:
        before = await register(backend, 1, 90)
        await older.keep()
        tail = await register(backend, 91, 100)
        assert {receipt.epoch for receipt in before + tail} == {before[0].epoch}
        older.put_back()
        answer = await persist(lambda: backend.streams.replay("s", position(tail[-1])))
        assert isinstance(answer, Gap)
        assert answer.reason is GapReason.EPOCH_CHANGED
        again = await register(backend, 90, 91)
        assert position(again[0]) == position(before[-1])  # it is known still that it was registered, and where
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
        await older.keep()
        assert (await node.leases.renew(LEASE, ())).lease == lease
        await write(node, "ended", 3, live=False)
        assert [event.type for event in await node.presence.leave("s", "ended")] == ["leave"]
        if messages:
            await register(node, 91, 100)
        older.put_back()
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
        assert [sid for sid, _ in await other.sessions.expired(10)] == ["ended"]


async def write(node: RedisBackend, sid: str, version: int, live: bool = True) -> None:
    session = SessionWrite(sid, SessionSnapshot(sid, {}), version, TTL, live, began=1.0)
    assert await node.leases.write([session]) == []


async def members(node: RedisBackend) -> list[str]:
    return [member.id for member in (await node.presence.page("s", "", 10)).members]


async def test_orders_that_a_node_has_not_received_outlast_a_restart_of_redis(redis: RedisServer) -> None:
    clock = ManualClock()
    async with running(redis, clock=clock) as node, running(redis, "two", clock=clock) as other:
        lease = (await node.leases.renew(60.0, ())).lease
        await write(node, "sid", 1)
        await other.sessions.revoke("sid")
        await written(redis)
        redis.kill()
        redis.start()
        renewal = await persist(lambda: node.leases.renew(60.0, ()))
        assert renewal.lease != lease
        assert renewal.taken == (SessionTaken("sid", revoked=True),)
        assert (await node.leases.renew(60.0, ["sid"])).taken == ()


async def test_a_node_that_comes_late_tells_what_it_saw(redis: RedisServer, tmp_path: Path) -> None:
    """The others have gone on meanwhile, at positions that it knows of other messages."""
    older = OlderFiles(redis, tmp_path)
    async with running(redis) as early, running(redis, "two") as late:
        before = await register(early, 1, 90)
        await older.keep()
        await register(late, 91, 100)
        older.put_back()
        assert position((await register(early, 101, 101))[0]) == Position(before[0].epoch, 91)
        after = await register(late, 102, 102)
        assert after[0].epoch != before[0].epoch
        assert after[0].offset == 1
        assert await early.streams.tip("s") == position(after[0])


async def test_every_restart_is_a_new_epoch_where_that_was_asked_for(redis: RedisServer) -> None:
    async with running(redis, restart_epochs=True) as backend:
        before = await register(backend, 1, 3)
        redis.kill()
        redis.start()
        after = await register(backend, 4, 4)
        assert after[0].offset == 1
        assert after[0].epoch != before[0].epoch


async def test_nodes_that_start_anew_with_redis_trust_only_what_is_on_the_disk_for_certain() -> None:
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


async def test_a_backend_starts_while_redis_is_down_and_says_so(redis: RedisServer) -> None:
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


async def test_what_a_paused_redis_did_not_answer_is_registered_once(redis: RedisServer) -> None:
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


async def test_redis_that_refuses_to_write_costs_a_clear_error_and_nothing_else(redis: RedisServer) -> None:
    async with running(redis) as backend, Redis.from_url(redis.url) as client:
        await register(backend, 1, 1)
        await client.config_set("min-replicas-to-write", 1)
        with pytest.raises(Unavailable, match="Redis refuses"):
            await backend.streams.append([Publication("s", b"2")])
        assert "refuses" in backend.health()
        await client.config_set("min-replicas-to-write", 0)
        await client.config_set("maxmemory", 1)
        with pytest.raises(Unavailable, match="Redis refuses"):
            await backend.streams.append([Publication("s", b"2")])
        await client.config_set("maxmemory", 0)
        await client.script_flush()
        assert (await register(backend, 2, 2))[0].offset == 2
        assert backend.health() == ""


# --- what comes to nodes ---------------------------------------------------------------------------------------------


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN):
        while not holds():
            await asyncio.sleep(0.02)


async def test_orders_reach_a_node_whose_connection_was_down(redis: RedisServer) -> None:
    heard: list[RemoteDisconnect | SessionTaken | SessionWanted] = []

    async def hear(order: RemoteDisconnect | SessionTaken | SessionWanted) -> int:
        heard.append(order)
        return 0

    async def nobody(order: RemoteDisconnect | SessionTaken | SessionWanted) -> int:
        return 0

    async with running(redis) as giver, running(redis, "two") as taker:
        await giver.feed.start(lambda messages: None, nobody)
        await giver.feed.command(RemoteDisconnect("before"))
        await taker.feed.start(lambda messages: None, hear)
        await taker.feed.listen("s")
        await giver.feed.command(RemoteDisconnect("one"))
        await until(lambda: len(heard) == 1)
        working = taker.feed._subscribers[0]._connect
        down = asyncio.Event()

        async def refused() -> object:
            down.set()
            raise ConnectionRefusedError

        taker.feed._subscribers[0]._connect = refused  # type: ignore[assignment]
        await cut_subscribers(redis)
        await down.wait()
        await giver.feed.command(RemoteDisconnect("two", reconnect=False))
        assert "listened" in taker.feed.health()
        with pytest.raises(TimeoutError):  # nothing counts as listened to before it is
            async with asyncio.timeout(0.1):
                await taker.feed.listen("s")
        taker.feed._subscribers[0]._connect = working
        await until(lambda: len(heard) == 2)
        assert heard == [RemoteDisconnect("one"), RemoteDisconnect("two", reconnect=False)]


async def cut_subscribers(redis: RedisServer) -> None:
    async with Redis.from_url(redis.url) as client:
        await client.client_kill_filter(_type="pubsub")


# --- settings and names ----------------------------------------------------------------------------------------------


async def test_settings_of_redis_that_lose_data_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
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


async def test_names_of_any_shape_do_not_meet(redis: RedisServer) -> None:
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


async def test_large_numbers_stay_whole(redis: RedisServer) -> None:
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


async def test_two_databases_of_one_redis_do_not_hear_of_each_other(redis: RedisServer) -> None:
    heard: list[bytes] = []
    orders: list[RemoteDisconnect | SessionTaken | SessionWanted] = []

    async def hear(order: RemoteDisconnect | SessionTaken | SessionWanted) -> int:
        orders.append(order)
        return 0

    backends = [RedisBackend(RULES, RedisAddress(f"{redis.url}/{database}"), "one") for database in (0, 1)]
    for backend in backends:
        await backend.start()
    here, there = backends
    await here.feed.start(lambda messages: heard.extend(message.payload for message in one_by_one(messages)), hear)
    await here.feed.listen("s")
    await there.streams.append([Publication("s", b"there", transient=True), Publication("s", b"there")])
    await there.feed.command(RemoteDisconnect("there"))
    await here.streams.append([Publication("s", b"here")])
    await until(lambda: b"here" in heard)
    assert (heard, orders) == ([b"here"], [])
    for backend in backends:
        await backend.stop()


async def test_what_others_publish_on_our_channels_harms_nobody(redis: RedisServer) -> None:
    async with running(redis) as backend, Redis.from_url(redis.url) as client:
        here = await Process().start(backend)
        await backend.feed.listen("s")
        for channel in ("c:s", "orders", "to:one"):
            await client.publish(f"rw:{{0}}:{channel}", b"\xffnonsense")
        await register(backend, 1, 1)
        await until(lambda: len(here.messages) == 1)
        assert backend.feed.health() == ""


async def test_an_outage_of_appends_alone_shows_in_the_health(redis: RedisServer) -> None:
    async with running(redis) as backend, Redis.from_url(redis.url) as client:
        await register(backend, 1, 1)
        await client.config_set("min-replicas-to-write", 1)
        with pytest.raises(Unavailable):
            await backend.streams.append([Publication("s", b"2")])
        await backend.streams.tip("s")
        assert "refuses" in backend.health()


@pytest.mark.alone  # each of them has to be confirmed within seconds
async def test_many_subscriptions_come_back_together(redis: RedisServer) -> None:
    streams = [f"s{number}" for number in range(3000)]
    async with running(redis) as backend:
        here = await Process().start(backend)
        await asyncio.gather(*(backend.feed.listen(stream) for stream in streams))
        await cut_subscribers(redis)
        await until(lambda: backend.feed.health() != "")
        await asyncio.gather(*(persist(lambda stream=stream: backend.feed.listen(stream)) for stream in streams))  # type: ignore[misc]
        await backend.streams.append([Publication(stream, b"1") for stream in streams])
        await until(lambda: len(here.messages) == len(streams))
        for stream in streams[1:]:
            backend.feed.unlisten(stream)
        async with Redis.from_url(redis.url) as client:
            async with asyncio.timeout(WITHIN):
                while len(await client.pubsub_channels("rw:{0}:c:*")) > 1:
                    await asyncio.sleep(0.02)
        assert backend.feed.health() == ""

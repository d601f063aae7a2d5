"""Shards that move between two stores against a store that keeps all of them: random calls to both, in the same
order and at the same times, return the same answers and send the same messages."""

from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Any

import pytest

from ropewalk.adapters.backends.memory.shards import ShardContent, put_in, take_out
from ropewalk.adapters.backends.memory.store import NodePresence, StoreOptions
from ropewalk.adapters.backends.workers.store import LeasedSessions, SharedStore
from ropewalk.core.ring import locate_shard
from ropewalk.core.rules import Rulebook
from ropewalk.model.limits import StoreLimits
from ropewalk.model.messages import LAST_KSUID, Position, Publication, Registered
from ropewalk.model.presence import Member
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import SessionSnapshot, SessionTaken, SessionWrite
from ropewalk.testing.clock import ManualClock

SHARDS = 3
NODES = ("one", "two")
STREAMS = tuple(f"stream{number}" for number in range(9))
IDENTITIES = ("bo", "cy")
CALLS = 400


class SentMessages:
    """Messages sent by a store, by stream and by node."""

    def __init__(self) -> None:
        self.messages: dict[str, list[Registered]] = {}
        self.orders: list[tuple[str, SessionTaken]] = []

    def carry(self, messages: Sequence[Registered]) -> None:
        for message in messages:
            self.messages.setdefault(message.stream, []).append(message)

    def order(self, node: str, order: SessionTaken) -> None:
        self.orders.append((node, order))


class Pair:
    """`whole` has all shards; each shard is also in one of the `halves`."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.clock = ManualClock()
        self.step = self.version = 0
        self.sequences = [0]
        self.sids = [f"sid{number}" for number in range(18)]
        self.sent = {"whole": SentMessages(), "halves": SentMessages()}
        self.whole = self._store(self.sent["whole"])
        self.halves = [self._store(self.sent["halves"]) for _ in range(2)]
        self.place = [self.rng.randrange(2) for _ in range(SHARDS)]

    def _store(self, sent: SentMessages) -> SharedStore:
        rules = Rulebook(StreamRules(history_limit=5, history_ttl=20.0))
        limits = StoreLimits(presence_ttl=4.0, dedup_ttl=15.0, idle_factor=1.0)
        store = SharedStore(rules, self.clock, sent, StoreOptions(limits, shards=SHARDS))
        store._table._new_epoch = lambda: f"epoch{self.step}"
        return store

    @property
    def stores(self) -> list[SharedStore]:
        return [self.whole, *self.halves]

    def half(self, name: str) -> SharedStore:
        return self.halves[self.place[locate_shard(name, SHARDS)]]

    async def start(self) -> None:
        for store in self.stores:
            for node in NODES:
                store.renew(node, 10.0, ())

    async def call(self) -> None:
        self.step += 1
        name = self.rng.choice(sorted(each for each in dir(self) if each.startswith("do_")))
        await getattr(self, name)()
        assert self.sent["whole"].messages == self.sent["halves"].messages, name
        assert sorted(map(repr, self.sent["whole"].orders)) == sorted(map(repr, self.sent["halves"].orders)), name

    async def both(self, name: str, call_store: Callable[[SharedStore], Any]) -> Any:
        """Call the whole store and the half that has the shard."""
        whole, half = await call_store(self.whole), await call_store(self.half(name))
        assert whole == half, name
        return whole

    async def everywhere(self, call_store: Callable[[SharedStore], Any]) -> None:
        """Call all stores."""
        whole, halves = await call_store(self.whole), [await call_store(store) for store in self.halves]
        assert sorted(map(repr, whole)) == sorted(repr(each) for half in halves for each in half)

    # --- streams

    async def do_publish(self) -> None:
        rng = self.rng
        stream = rng.choice(STREAMS)
        some = [
            Publication(
                stream,
                f"{self.step}".encode(),
                uid=rng.choice(("", "u1", LAST_KSUID)),
                producer=rng.choice(("", "", "p")),
                sequence=self.step if rng.random() < 0.7 else rng.choice(self.sequences[-9:]),
                transient=rng.random() < 0.1,
                exclude_socket=rng.choice(("", "x")),
                ts_producer=rng.choice((0, self.step)),
            )
            for _ in range(rng.randrange(1, 4))
        ]
        await self.both(stream, lambda store: store.streams.append(some))
        self.sequences.append(self.step)

    do_publish_more = do_publish

    async def do_read(self) -> None:
        stream = self.rng.choice(STREAMS)
        tip: Position = await self.both(stream, lambda store: store.streams.tip(stream))
        position = Position(tip.epoch, max(0, tip.offset - self.rng.randrange(8)))
        at = self.clock.now - self.rng.choice((0.0, 1.0, 5.0, 30.0))
        await self.both(stream, lambda store: store.streams.replay(stream, position))
        await self.both(stream, lambda store: store.streams.since(stream, at))
        await self.both(stream, lambda store: store.streams.page(stream, 0, 3))

    async def do_list(self) -> None:
        await self.everywhere(lambda store: store.streams.summaries("", 100))
        gauges = [store.gauges() for store in self.halves]
        assert self.whole.gauges() == {name: gauges[0][name] + gauges[1][name] for name in gauges[0]}

    # --- sessions

    def _new_sid(self, former: str) -> str:
        """A sid of the same shard: otherwise the session itself would have to move."""
        candidates = (f"sid{self.step}.{number}" for number in count())
        sid = next(each for each in candidates if locate_shard(each, SHARDS) == locate_shard(former, SHARDS))
        self.sids = [*self.sids[1:], sid]
        return sid

    async def do_write(self) -> None:
        rng = self.rng
        self.version += 1
        sid, node = rng.choice(self.sids), rng.choice(NODES)
        snapshot = SessionSnapshot(rng.choice(IDENTITIES), {}, expires_at=float(self.version))
        began = rng.choice((None, self.clock.now, self.clock.now - 3))
        write = SessionWrite(sid, snapshot, self.version, rng.choice((0.0, 5.0, 10.0)), rng.random() < 0.7, began)
        await self.both(sid, lambda store: LeasedSessions(store, node).write([write]))

    async def do_take(self) -> None:
        sid, node = self.rng.choice(self.sids), self.rng.choice(NODES)
        successor = self.rng.choice((self._new_sid(sid), self.sids[-1], ""))
        if locate_shard(successor, SHARDS) != locate_shard(sid, SHARDS) or successor == sid:
            successor = ""
        await self.both(sid, lambda store: LeasedSessions(store, node).peek(sid))
        await self.both(sid, lambda store: LeasedSessions(store, node).take(sid, successor))

    async def do_revoke(self) -> None:
        ids = self.rng.choice(IDENTITIES)
        await self.everywhere(lambda store: LeasedSessions(store, "one").revoke(ids, True))

    async def do_expired(self) -> None:
        await self.everywhere(lambda store: LeasedSessions(store, "one").take_expired(100))

    async def do_renew(self) -> None:
        node, live_sids = self.rng.choice(NODES), self.rng.sample(self.sids, 3)

        async def taken(store: SharedStore) -> Any:
            return store.renew(node, 10.0, live_sids).taken

        await self.everywhere(taken)

    # --- presence

    async def do_join(self) -> None:
        rng = self.rng
        stream, sid, node = rng.choice(STREAMS), rng.choice(self.sids), rng.choice(NODES)
        member = Member(rng.choice("mno"), rng.choice((b"", b"1")))
        for store in self.stores:
            await NodePresence(store, node).adopt(sid, sid)  # a live session is attached everywhere
        await self.both(stream, lambda store: NodePresence(store, node).join(stream, sid, member))
        await self.both(stream, lambda store: NodePresence(store, node).members(stream, "", 2))

    async def do_leave(self) -> None:
        stream, sid = self.rng.choice(STREAMS), self.rng.choice(self.sids)
        await self.both(stream, lambda store: NodePresence(store, "one").leave(stream, sid))

    async def do_detach(self) -> None:
        sid, ttl = self.rng.choice(self.sids), self.rng.choice((0.0, 4.0, 15.0))
        for store in self.stores:
            await NodePresence(store, "one").detach(sid, ttl)

    async def do_adopt(self) -> None:
        old, new = self.rng.sample(self.sids, 2)

        async def adopted(store: SharedStore) -> Any:
            return (await NodePresence(store, "two").adopt(old, new)).items()

        await self.everywhere(adopted)

    # --- time and moves

    async def do_pass_time(self) -> None:
        self.clock.advance(self.rng.choice((0.5, 1.0, 3.0, 7.0)))
        for store in self.stores:
            await store.sweep()
        await self.everywhere(lambda store: NodePresence(store, "one").expire())

    async def do_move(self) -> None:
        shard = self.rng.randrange(SHARDS)
        content = await take_out(self.halves[self.place[shard]], shard)
        if self.rng.random() < 0.2:
            put_in(self.halves[self.place[shard]], content)  # the target was unreachable
            return
        self.place[shard] = 1 - self.place[shard]
        arrived = ShardContent(shard)
        for piece in content.pieces(size=self.rng.choice((1, 300, 100_000))):
            arrived.add(piece)
        put_in(self.halves[self.place[shard]], arrived)

    do_move_more = do_move


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 40), marks=pytest.mark.tier("all"))], ids=["few", "many"])
async def test_store_with_moving_shards_answers_like_one_without(seeds: range) -> None:
    for seed in seeds:
        pair = Pair(seed)
        await pair.start()
        for _ in range(CALLS):
            await pair.call()


async def test_shard_that_was_taken_out_leaves_no_state() -> None:
    pair = Pair(1)
    await pair.start()
    for _ in range(CALLS):
        await pair.call()
    for shard in range(SHARDS):
        await take_out(pair.halves[pair.place[shard]], shard)
    assert all(size == 0 for store in pair.halves for size in store.gauges().values())
    assert all(not store.sessions.nodes() and not store.presence.nodes() for store in pair.halves)


async def test_revoked_session_does_not_return_after_its_shard_moved() -> None:
    one, other = Pair(3).halves
    one.sessions.revoke("bo", True)
    put_in(other, await take_out(one, locate_shard("sid0", SHARDS)))
    write = SessionWrite("sid0", SessionSnapshot("bo", {}), 1, 5.0, began=one.clock() - 1)
    assert other.sessions.write("two", write) == SessionTaken("sid0", revoked=True, stored=False)


async def test_arriving_shard_replaces_stale_content() -> None:
    one, other = Pair(4).halves
    for store in (one, other):
        await store.streams.append([Publication("stream0", b"1")])
    await one.streams.append([Publication("stream0", b"2")])
    stale = next(
        f"old{number}" for number in count() if locate_shard(f"old{number}", SHARDS) == locate_shard("stream0", SHARDS)
    )
    await other.streams.append([Publication(stale, b"1")])
    put_in(other, await take_out(one, locate_shard("stream0", SHARDS)))
    assert (await other.streams.tip("stream0")).offset == 2
    assert (await other.streams.tip(stale)).offset == 0


async def test_pieces_are_bounded() -> None:
    pair = Pair(2)
    store = pair.whole
    await store.streams.append([Publication(STREAMS[0], b"x" * 900) for _ in range(5)])
    content = await take_out(store, locate_shard(STREAMS[0], SHARDS))
    pieces = list(content.pieces(size=2100))
    assert len(pieces) > 1
    assert max(map(len, pieces)) < 2100

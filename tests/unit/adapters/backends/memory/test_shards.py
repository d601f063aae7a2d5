"""A shard moves between two stores with journals. The journal of either store has the streams it holds."""

from collections.abc import Sequence
from pathlib import Path

from ropewalk.adapters.backends.memory.shards import put_in, take_out
from ropewalk.adapters.backends.memory.store import StoreOptions
from ropewalk.adapters.backends.workers.store import SharedStore
from ropewalk.core.ring import locate_shard
from ropewalk.core.rules import Rulebook
from ropewalk.model.journal import Recovered
from ropewalk.model.messages import Position, Publication, Registered
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import SessionTaken
from ropewalk.ports import Journal
from ropewalk.testing.clock import ManualClock
from tests.journals import as_if_killed, running

SHARDS = 3
STREAM = "chat"
SHARD = locate_shard(STREAM, SHARDS)


class NoListeners:
    def carry(self, messages: Sequence[Registered]) -> None: ...
    def order(self, node: str, order: SessionTaken) -> None: ...


def made(clock: ManualClock, journal: Journal | None, limit: int = 8) -> SharedStore:
    rules = Rulebook(StreamRules(history_limit=limit, history_ttl=300.0))
    return SharedStore(rules, clock, NoListeners(), StoreOptions(journal=journal, shards=SHARDS))


def uid(number: int) -> str:
    """A KSUID, so that clients of Broky receive it."""
    return f"{number:027}"


async def publish(store: SharedStore, clock: ManualClock, first: int, last: int) -> None:
    for number in range(first, last + 1):
        clock.advance(1.0)
        one = Publication(STREAM, b"%d" % number, uid=uid(number), producer="p", sequence=number, ts_producer=number)
        assert (await store.streams.append([one]))[0].offset == number


async def move(one: SharedStore, other: SharedStore, journal: Journal) -> None:
    content = await take_out(one, SHARD)
    await journal.write(content.rows())
    put_in(other, content)


async def recovered(directory: Path, copy: Path, clock: ManualClock) -> SharedStore:
    async with running(as_if_killed(directory, copy), clock) as (_, found):
        store = made(clock, None)
        store.recover(Recovered(*(getattr(found, name) for name in Recovered.__struct_fields__)), 300.0, 15.0)
        return store


async def assert_equal(store: SharedStore, after: SharedStore) -> None:
    """Both have the assert_equal positions, messages and idempotency keys."""
    before, streams = store.streams, after.streams
    tip = await before.tip(STREAM)
    assert await streams.tip(STREAM) == tip
    for offset in range(tip.offset + 1):
        position = Position(tip.epoch, offset)
        assert await streams.replay(STREAM, position) == await before.replay(STREAM, position)
    for number in range(max(1, tip.offset - 7), tip.offset + 1):
        for again in (Publication(STREAM, b"", uid=uid(number)), Publication(STREAM, b"", producer="p", sequence=number)):
            receipts = await streams.append([again])
            assert (receipts[0].offset, receipts[0].duplicate) == (number, True)


async def test_journal_of_a_killed_store_has_the_streams_of_a_moved_shard(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path / "a", clock) as (journal_a, _), running(tmp_path / "b", clock) as (journal_b, _):
        a, b = made(clock, journal_a), made(clock, journal_b)
        await publish(a, clock, 1, 3)
        await move(a, b, journal_b)
        await publish(b, clock, 4, 5)
        await assert_equal(b, await recovered(tmp_path / "b", tmp_path / "b1", clock))

        await move(b, a, journal_a)
        await assert_equal(a, await recovered(tmp_path / "a", tmp_path / "a1", clock))
        await publish(a, clock, 6, 15)
        await assert_equal(a, await recovered(tmp_path / "a", tmp_path / "a2", clock))

        await move(a, b, journal_b)
        await publish(b, clock, 16, 18)
        await assert_equal(b, await recovered(tmp_path / "b", tmp_path / "b2", clock))


async def test_history_of_a_returned_shard_excludes_messages_kept_before_it_left(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path / "a", clock) as (journal_a, _):
        a, b = made(clock, journal_a), made(clock, None, limit=2)
        await publish(a, clock, 1, 3)
        put_in(b, await take_out(a, SHARD))
        await publish(b, clock, 4, 9)
        await move(b, a, journal_a)
        after = await recovered(tmp_path / "a", tmp_path / "killed", clock)
        page = await after.streams.page(STREAM, 0, 100)
        assert page == await a.streams.page(STREAM, 0, 100)
        assert page is not None
        assert [message.offset for message in page.messages] == [8, 9]

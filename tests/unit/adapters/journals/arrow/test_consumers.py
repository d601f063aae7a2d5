"""Consumers of the journal: their positions are on disk, and unread rows are kept for them within limits."""

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ropewalk.adapters.journals.arrow import ArrowJournal, consumers
from ropewalk.model.errors import Conflict, LimitReached, Unavailable
from ropewalk.model.journal import ShardMark
from ropewalk.testing.clock import ManualClock
from tests.journals import QuickDisk, as_if_killed, publication, running

TTL = 500.0
OPTIONS: dict[str, Any] = {"shards": 1, "segment_size": 5000, "retention": 100.0, "for_archive": False, "consumer_ttl": TTL}


class BadDisk(QuickDisk):
    bad = False

    def write(self, fd: int, data: bytes, at: int) -> None:
        if self.bad:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(fd, data, at)


def mark(position: int) -> dict[int, ShardMark]:
    return {0: ShardMark("e", position)}


async def fill(journal: ArrowJournal, clock: ManualClock, count: int) -> None:
    for offset in range(1, count + 1):
        await journal.write([publication("a", offset, at=clock.now)])
        clock.advance(10)


async def test_consumer_positions_survive_a_kill(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path / "alive", clock, **OPTIONS) as (journal, _):
        await journal.pin("..", mark(0))
        await journal.pin("A", mark(3))
        await journal.pin("a", mark(4))
        await journal.move("a", mark(5))
        await journal.pin("gone", mark(1))
        assert await journal.remove("gone")
        before = journal.consumers()
        copy = as_if_killed(tmp_path / "alive", tmp_path / "killed")
    async with running(copy, clock, **OPTIONS) as (journal, _):
        assert journal.consumers() == before
        assert [(consumer.name, consumer.marks) for consumer in before] == [("..", mark(0)), ("A", mark(3)), ("a", mark(5))]


async def test_concurrent_pins_of_one_name_return_the_same_position(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock(), **OPTIONS) as (journal, _):
        answers = await asyncio.gather(*(journal.pin("a", mark(position)) for position in range(20)))
        assert {answer.marks[0].position for answer in answers} == {journal.consumers()[0].marks[0].position}


async def test_unread_rows_are_kept_until_the_consumer_moves(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock, **OPTIONS) as (journal, _):
        await journal.pin("slow", mark(0))
        await fill(journal, clock, 30)
        await journal.sweep()
        assert journal.spans()[0].first == 0
        await journal.move("slow", mark(12))
        await journal.sweep()
        assert 0 < journal.spans()[0].first <= 12


async def test_expired_consumer_does_not_hold_rows(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock, **OPTIONS) as (journal, _):
        await journal.pin("dead", mark(0))
        await fill(journal, clock, 30)
        clock.advance(TTL)
        await journal.sweep()
        assert journal.spans()[0].first > 0
        assert [consumer.name for consumer in journal.consumers()] == ["dead"]


async def test_deleted_consumer_does_not_hold_rows(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock, **OPTIONS) as (journal, _):
        await journal.pin("done", mark(0))
        await fill(journal, clock, 30)
        await journal.remove("done")
        await journal.sweep()
        assert journal.spans()[0].first > 0


async def test_hard_limit_removes_rows_despite_consumers_and_counts_them_as_lost(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock, **{**OPTIONS, "retention": 0.0, "hard_limit": 25_000}) as (journal, _):
        await journal.pin("slow", mark(0))
        await fill(journal, clock, 30)
        await journal.sweep()
        gauges = journal.gauges()
        assert gauges["journal_bytes"] <= 25_000
        assert gauges["journal_lost_rows"] == journal.spans()[0].first > 0


async def test_gauges_have_the_number_of_consumers_and_the_largest_lag(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock, **OPTIONS) as (journal, _):
        await fill(journal, clock, 10)
        await journal.pin("first", mark(8))
        await journal.pin("last", mark(3))
        gauges = journal.gauges()
        assert (gauges["journal_consumers"], gauges["journal_consumer_lag_rows"]) == (2, 7)


async def test_new_consumer_beyond_the_limit_replaces_an_expired_one_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "MAX_CONSUMERS", 2)
    clock = ManualClock()
    async with running(tmp_path, clock, **OPTIONS) as (journal, _):
        await journal.pin("a", mark(0))
        clock.advance(TTL / 2)
        await journal.pin("b", mark(0))
        with pytest.raises(LimitReached):
            await journal.pin("c", mark(0))
        await journal.pin("b", mark(0))
        clock.advance(TTL / 2)
        await journal.pin("c", mark(0))
        assert [consumer.name for consumer in journal.consumers()] == ["b", "c"]
    async with running(tmp_path, clock, **OPTIONS) as (journal, _):
        assert [consumer.name for consumer in journal.consumers()] == ["b", "c"]


async def test_consumer_change_that_cannot_be_written_has_no_effect(tmp_path: Path) -> None:
    disk = BadDisk()
    async with running(tmp_path, ManualClock(), **OPTIONS, disk=disk) as (journal, _):
        await journal.pin("a", mark(1))
        disk.bad = True
        with pytest.raises(Unavailable):
            await journal.move("a", mark(2))
        with pytest.raises(Unavailable):
            await journal.pin("b", mark(2))
        disk.bad = False
        assert [(consumer.name, consumer.marks) for consumer in journal.consumers()] == [("a", mark(1))]


async def damaged_consumer(directory: Path, clock: ManualClock) -> Path:
    """Writes two consumers and damages the file of "a". Its modification time is that of the clock."""
    async with running(directory, clock, **OPTIONS) as (journal, _):
        await journal.pin("a", mark(1))
        await journal.pin("b", mark(25))
    (path,) = (path for path in (directory / "journal" / "consumers").iterdir() if b'"a"' in path.read_bytes())
    path.write_bytes(path.read_bytes().replace(b'"p":1', b'"p":7'))
    os.utime(path, (clock.now, clock.now))
    return path


async def test_consumer_with_a_damaged_file_cannot_be_pinned_and_holds_all_rows_until_it_moves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    path = await damaged_consumer(tmp_path, clock)
    damaged = path.read_bytes()
    async with running(tmp_path, clock, **OPTIONS) as (journal, _):
        assert f"the marks of a consumer cannot be read: {path}" in caplog.text
        assert [consumer.name for consumer in journal.consumers()] == ["b"]
        await fill(journal, clock, 30)
        await journal.sweep()
        assert journal.spans()[0].first == 0
        with pytest.raises(Conflict, match="cannot be read"):
            await journal.pin("a", mark(20))
        assert path.read_bytes() == damaged
        await journal.move("a", mark(20))
        await journal.sweep()
        assert 0 < journal.spans()[0].first <= 20
        assert [consumer.name for consumer in journal.consumers()] == ["a", "b"]


async def test_consumer_with_a_damaged_file_can_be_deleted_and_expires(tmp_path: Path) -> None:
    for end in ("forgotten", "too old"):
        clock = ManualClock()
        path = await damaged_consumer(tmp_path / end, clock)
        async with running(tmp_path / end, clock, **OPTIONS) as (journal, _):
            await fill(journal, clock, 30)
            if end == "forgotten":
                assert await journal.remove("a")
                assert not path.exists()
            clock.advance(0 if end == "forgotten" else TTL)
            await journal.sweep()
            assert journal.spans()[0].first > 0

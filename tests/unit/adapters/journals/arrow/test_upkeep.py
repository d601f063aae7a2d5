"""Sealing keeps all rows, and retention removes only those that may be removed."""

import errno
from pathlib import Path
from typing import Any

from ropewalk.adapters.journals.arrow import ArrowJournal
from ropewalk.adapters.journals.arrow.records import load
from ropewalk.model.journal import Row
from ropewalk.testing.clock import ManualClock
from tests.journals import QuickDisk, publication, read_all, running

SEGMENT_BYTES = 5000


class FullDisk(QuickDisk):
    """Fails so many writes."""

    refused = 0

    def write(self, fd: int, data: bytes, at: int) -> None:
        if self.refused:
            self.refused -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(fd, data, at)


async def fill(journal: ArrowJournal, clock: ManualClock, count: int, first: int = 1) -> list[Row]:
    """Writes one row per group, ten seconds apart, so that segments consist of small batches."""
    rows = [publication("a", offset, at=clock.now + 10.0 * (offset - first)) for offset in range(first, first + count)]
    for row in rows:
        await journal.write([row])
        clock.advance(10)
    return rows


async def test_sealing_merges_small_batches_and_keeps_the_rows(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock, shards=1, segment_size=150_000) as (journal, _):
        rows = await fill(journal, clock, 300)
        await journal.sweep()
        gauges = journal.gauges()
        assert gauges["journal_groups"] == 300
        assert gauges["journal_segments"] > 2
        assert gauges["journal_batches"] < 150
        assert list((await read_all(journal))[0].values()) == rows
    async with running(tmp_path, clock, shards=1) as (journal, recovered):
        assert recovered.reset_shards == ()
        assert recovered.rows == rows
        assert list((await read_all(journal))[0].values()) == rows


async def test_segment_is_full_after_its_time_limit(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock, shards=1, segment_seconds=50.0) as (journal, _):
        await fill(journal, clock, 12)
        assert journal.gauges()["journal_segments"] == 3


async def test_old_rows_are_kept_until_they_are_archived(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock, shards=1, segment_size=SEGMENT_BYTES, retention=100.0) as (journal, _):
        await fill(journal, clock, 30)
        clock.advance(1000)
        await journal.sweep()
        assert journal.spans()[0].first == 0
        journal.mark_archived({0: 10})
        await journal.sweep()
        first = journal.spans()[0].first
        assert 0 < first <= 10
        assert journal.gauges()["journal_lost_rows"] == 0
        journal.mark_archived({0: 30})
        await journal.sweep()
        assert first < journal.spans()[0].first < 30  # the last segment is never removed
    async with running(tmp_path, clock, shards=1) as (journal, recovered):
        assert recovered.reset_shards == ()
        assert [tip.tip for tip in recovered.tips] == [30]
        assert journal.archived_ends() == {0: 30}


async def test_recent_rows_are_kept_after_they_are_archived(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock, shards=1, segment_size=SEGMENT_BYTES, retention=1000.0) as (journal, _):
        await fill(journal, clock, 30)
        journal.mark_archived({0: 30})
        await journal.sweep()
        assert journal.spans()[0].first == 0


async def test_without_an_archive_rows_are_removed_by_age_and_size(tmp_path: Path) -> None:
    clock = ManualClock()
    options: dict[str, Any] = {"shards": 1, "segment_size": SEGMENT_BYTES, "for_archive": False}
    async with running(tmp_path / "age", clock, retention=100.0, **options) as (journal, _):
        await fill(journal, clock, 30)
        await journal.sweep()
        assert 10 < journal.spans()[0].first < 30
    async with running(tmp_path / "size", clock, retention=0.0, retention_size=20_000, **options) as (journal, _):
        await fill(journal, clock, 30)
        await journal.sweep()
        assert journal.gauges()["journal_bytes"] <= 20_000
        assert journal.gauges()["journal_lost_rows"] == 0


async def test_hard_limit_removes_the_oldest_rows_and_counts_them_as_lost(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock, shards=1, segment_size=SEGMENT_BYTES, retention=0.0, hard_limit=25_000) as (journal, _):
        await fill(journal, clock, 30)
        await journal.sweep()
        gauges = journal.gauges()
        assert gauges["journal_bytes"] <= 25_000
        assert gauges["journal_lost_rows"] == journal.spans()[0].first > 0


async def test_segment_that_survived_its_removal_is_removed_at_the_next_start(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock, shards=1, segment_size=SEGMENT_BYTES, retention=10.0) as (journal, _):
        await fill(journal, clock, 30)
        oldest = sorted(tmp_path.rglob("*.arrow"))[0]
        kept = oldest.read_bytes()
        journal.mark_archived({0: 30})
        await journal.sweep()
        assert not oldest.exists()
    oldest.write_bytes(kept)
    async with running(tmp_path, clock, shards=1) as (_, recovered):
        assert recovered.reset_shards == ()
        assert not oldest.exists()


async def test_old_segments_are_removed_from_a_full_disk(tmp_path: Path) -> None:
    clock = ManualClock()
    disk = FullDisk()
    async with running(tmp_path, clock, shards=1, segment_size=SEGMENT_BYTES, retention=10.0, disk=disk) as (journal, _):
        await fill(journal, clock, 30)
        await journal.sweep()
        journal.mark_archived({0: 30})
        disk.refused = 1
        await journal.sweep()
        assert journal.spans()[0].first > 0
        assert len(list(tmp_path.rglob("*.arrow"))) == journal.gauges()["journal_segments"]
    async with running(tmp_path, clock, shards=1) as (_, recovered):
        assert recovered.reset_shards == ()


async def test_damaged_segment_is_not_sealed_and_its_hole_is_recorded(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock, shards=1, segment_size=SEGMENT_BYTES, retention=10.0) as (journal, _):
        await fill(journal, clock, 3)
        (segment,) = tmp_path.rglob("*.arrow")
        data = bytearray(segment.read_bytes())
        data[data.index(b"a 2")] ^= 1
        segment.write_bytes(data)
        await fill(journal, clock, 10, 4)
        journal.mark_archived({0: 13})
        await journal.sweep()
        assert [(span.first, span.end) for span in journal.spans()] == [(0, 1), (2, 13)]
        await journal.sweep()
        record = load(tmp_path / "journal")
        assert record is not None
        assert record.generations[0][0].holes == [(1, 2)]
    async with running(tmp_path, clock, shards=1) as (journal, recovered):
        assert recovered.reset_shards == (0,), "what its streams had come to can not be computed without it"
        assert [(span.first, span.end) for span in journal.spans()[:2]] == [(0, 1), (2, 13)]
        assert sorted((await read_all(journal))[0]) == [0, *range(2, 13)]


async def test_retention_removes_damaged_segments_of_a_former_generation(tmp_path: Path) -> None:
    clock = ManualClock()
    options: dict[str, Any] = {"shards": 1, "segment_size": SEGMENT_BYTES, "retention": 100.0, "for_archive": False}
    async with running(tmp_path, clock, **options) as (journal, _):
        await fill(journal, clock, 9)
    bad = sorted(tmp_path.rglob("*.arrow"))[1]
    bad.write_bytes(bytes(bad.stat().st_size))
    async with running(tmp_path, clock, **options) as (journal, recovered):
        assert recovered.reset_shards == (0,)
        former = journal.spans()[0].epoch
        clock.advance(1000)
        await journal.sweep()
        assert [(span.first, span.end) for span in journal.spans() if span.epoch == former] == [(9, 9)]
        assert journal.gauges()["journal_holes"] == 0
        assert not bad.exists()


async def test_missing_segment_is_one_hole(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock, shards=1, segment_size=SEGMENT_BYTES) as (journal, _):
        await fill(journal, clock, 12)
        _, second, third, *_ = sorted(tmp_path.rglob("*.arrow"))
        second.unlink()
        kept = [position for position in range(12) if not int(second.stem) <= position < int(third.stem)]
        assert sorted((await read_all(journal))[0]) == kept
        assert journal.gauges()["journal_holes"] == 1

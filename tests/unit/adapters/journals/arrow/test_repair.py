"""Repair restores lost rows from the archive to their positions."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ropewalk.adapters.journals.arrow.backup import JournalCopy
from ropewalk.adapters.journals.arrow.maintenance import verify
from ropewalk.adapters.journals.arrow.records import NAMES, Disk
from ropewalk.adapters.journals.arrow.repair import Repaired, repair
from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import GENERATION_BITS, ShardSpan, find_holes
from ropewalk.testing.clock import ManualClock
from tests.journals import QuickDisk, as_if_killed, publication, read_all, running
from tests.unit.adapters.journals.arrow.damaged_journal import WRITES, FakeArchive, KilledJournal, check_progress, holes


async def test_repair_restores_archived_rows_and_the_journal_continues(
    damaged: KilledJournal,
) -> None:
    lost = damaged.damage()
    bad = damaged.segments()[0].read_bytes()
    repaired = damaged.repair(damaged.archive.rows)
    assert (repaired.filled_rows, repaired.missing_rows, repaired.rebuilt) == (len(lost), 0, False)
    assert damaged.verify().whole
    assert bad in [Path(path).read_bytes() for path in repaired.kept]
    async with running(damaged.directory, ManualClock()) as (journal, recovered):
        assert (recovered.reset_shards, recovered.notes) == ((), ())
        assert await read_all(journal) == damaged.rows
        assert {tip.tip for tip in recovered.tips} == {WRITES}
        await journal.write([publication("stream 0", WRITES + 1)])
    assert damaged.repair(damaged.archive.rows) == Repaired(False, 0, 0, [])


async def test_repair_restores_rows_of_a_generation_that_ended_by_damage(damaged: KilledJournal) -> None:
    lost = damaged.damage()
    async with running(damaged.directory, ManualClock()) as (journal, recovered):
        assert recovered.reset_shards == (1,)
        await journal.write([publication("stream 0", 1), *(publication(f"stream {each}", 1) for each in range(9))])
        after = await read_all(journal)
    with_holes = damaged.verify()
    assert sum(shard.hole_rows for shard in with_holes.shards) == len(lost)
    damaged.repair(damaged.archive.rows)
    assert damaged.verify().whole
    async with running(damaged.directory, ManualClock()) as (journal, recovered):
        assert (recovered.reset_shards, recovered.notes) == ((), ())
        found = await read_all(journal)
        assert {at: row for at, row in found[1].items() if at < 1 << GENERATION_BITS} == damaged.rows[1]
        assert all(found[shard][at] == row for shard, rows in after.items() for at, row in rows.items())
        assert journal.gauges()["journal_holes"] == 0


async def test_repair_from_an_incomplete_archive_restores_its_part_of_a_hole(damaged: KilledJournal) -> None:
    lost = damaged.damage()
    third = sorted(lost)[len(lost) // 2]
    repaired = damaged.repair(damaged.archive.up_to(third).rows)
    assert repaired.filled_rows == sum(1 for position in lost if position < third)
    report = damaged.verify()
    assert {at for _, first, end in holes(report) for at in range(first, end)} == {at for at in lost if at >= third}
    async with running(damaged.directory, ManualClock()) as (journal, recovered):
        assert recovered.reset_shards == (1,)
        assert sorted((await read_all(journal))[1]) == [at for at in damaged.rows[1] if at not in lost or at < third]


async def test_repair_restores_a_missing_shard(damaged: KilledJournal) -> None:
    for path in (damaged.directory / "journal" / "shard=01").iterdir():
        path.unlink()
    (damaged.directory / "journal" / "shard=01").rmdir()
    assert holes(damaged.verify()) == [(1, 0, len(damaged.rows[1]))]
    assert damaged.repair(damaged.archive.rows).missing_rows == 0
    async with running(damaged.directory, ManualClock()) as (journal, recovered):
        assert recovered.reset_shards == ()
        assert await read_all(journal) == damaged.rows


@pytest.mark.parametrize("how", ["first", "all", "directory", "zeroed"])
async def test_hole_at_the_beginning_of_a_shard_is_reported_after_every_start_and_repaired(
    damaged: KilledJournal, how: str
) -> None:
    first, second, *_ = damaged.segments()
    end = int(second.stem) if how in ("first", "zeroed") else len(damaged.rows[1])
    if how == "directory":
        shutil.rmtree(first.parent)
    elif how == "zeroed":
        first.write_bytes(bytes(first.stat().st_size))
    else:
        for path in damaged.segments() if how == "all" else [first]:
            path.unlink()
    spans: list[ShardSpan] = []
    for start in range(3):
        assert holes(damaged.verify()) == [(1, 0, end)]
        async with running(damaged.directory, ManualClock()) as (journal, recovered):
            assert recovered.reset_shards == ((1,) if start == 0 else ())
            assert [f"positions 0 to {end - 1} " in note for note in recovered.notes] == ([True] if start == 0 else [])
            (hole,) = find_holes(journal.spans())
            assert (hole.shard, hole.first, hole.end) == (1, 0, end)
            assert (journal.gauges()["journal_holes"], journal.gauges()["journal_hole_rows"]) == (1, end)
            spans = spans or journal.spans()
            assert journal.spans() == spans
            await journal.sweep()
    copy = JournalCopy(damaged.directory / "journal", damaged.directory / "copy" / "journal", check_progress, QuickDisk())
    copy.consumers()
    assert copy.rows().hole_rows == end
    assert holes(verify(damaged.directory / "copy", check_progress)) == [(1, 0, end)], "a backup has the same hole"
    assert damaged.repair(damaged.archive.rows).filled_rows == end
    assert damaged.verify().whole
    async with running(damaged.directory, ManualClock()) as (journal, recovered):
        assert (recovered.reset_shards, recovered.notes, find_holes(journal.spans())) == ((), (), [])
        assert (await read_all(journal))[1] == damaged.rows[1]


async def test_rows_removed_by_retention_are_not_a_hole_and_retention_removes_holes(damaged: KilledJournal) -> None:
    first, *_ = damaged.segments(1)
    first.unlink()
    clock = ManualClock(1_000_000.0 + WRITES)
    options: dict[str, Any] = {"retention": WRITES / 2, "for_archive": False}
    async with running(damaged.directory, clock, **options) as (journal, _):
        assert [hole.first for hole in find_holes(journal.spans())] == [0]
        await journal.sweep()
        assert all(span.first > 0 for span in journal.spans()), "retention removed nothing"
        assert find_holes(journal.spans()) == []
        killed = as_if_killed(damaged.directory, damaged.directory.with_name("killed again"))
    for directory in (damaged.directory, killed):
        assert verify(directory, check_progress).holes == []
        async with running(directory, clock, **options) as (journal, recovered):
            assert (recovered.reset_shards, recovered.notes, find_holes(journal.spans())) == ((), (), [])


async def test_lost_generation_is_a_hole_until_retention_removes_newer_rows(
    damaged: KilledJournal,
) -> None:
    shutil.rmtree(damaged.segments()[0].parent)
    clock = ManualClock(1_000_000.0 + WRITES)
    options: dict[str, Any] = {"retention": 600.0, "for_archive": False, "segment_size": 4000}
    async with running(damaged.directory, clock, **options) as (journal, _):
        for offset in range(1, 40):
            await journal.write([publication(f"stream {each}", offset, at=clock()) for each in range(9)])
        await journal.sweep()
        assert [hole.shard for hole in find_holes(journal.spans())] == [1]
        clock.advance(1000)
        await journal.sweep()
        assert find_holes(journal.spans()) == []
        lost_end = len(damaged.rows[1])
        assert (lost_end, lost_end) in [(span.first, span.end) for span in journal.spans() if span.shard == 1]
    assert damaged.verify().holes == []


@pytest.mark.parametrize("number", [0, 1, -1], ids=["first", "between", "last"])
async def test_damaged_arrow_header_is_reported_and_rewritten_without_an_archive(damaged: KilledJournal, number: int) -> None:
    path = damaged.segments()[number]
    whole = path.read_bytes()
    lost = bytes(4) + whole[4:]
    path.write_bytes(lost)
    for _ in range(2):
        report = damaged.verify()
        assert (report.whole, report.holes, len(report.problems)) == (False, [], 1)
        assert f"shard=01/{path.name}" in report.problems[0]
        async with running(damaged.directory, ManualClock()) as (journal, recovered):
            assert recovered.reset_shards == ()
            assert await read_all(journal) == damaged.rows
    repaired = damaged.repair(None)
    assert (repaired.headers, repaired.filled_rows, repaired.missing_rows) == (1, 0, 0)
    assert [Path(kept).read_bytes() for kept in repaired.kept] == [lost]
    assert path.read_bytes() == whole
    with pa.OSFile(str(path)) as file:
        assert pa.ipc.open_stream(file).read_all().num_rows > 0
    assert damaged.verify().whole
    assert damaged.repair(None) == Repaired(False, 0, 0, [])


STRAY_NUMBERS = [10**20 - 1, 1 << 63, 99_999, 1, 7 << GENERATION_BITS, (1 << GENERATION_BITS) + 5]


@pytest.mark.parametrize("copied", [False, True], ids=["one byte", "copy of another segment"])
@pytest.mark.parametrize("rebuilt", [False, True], ids=["recorded", "rebuilt"])
async def test_stray_files_are_reported_and_no_row_is_lost(
    killed_journal: KilledJournal, tmp_path: Path, copied: bool, rebuilt: bool, subtests: pytest.Subtests
) -> None:
    for numbers in (STRAY_NUMBERS[:3], STRAY_NUMBERS[3:]):
        with subtests.test(numbers=numbers):
            damaged = killed_journal.copy(tmp_path / str(numbers[0]))
            strays = [damaged.segments(shard)[0].with_name(f"{number:020}.arrow") for shard, number in enumerate(numbers)]
            data = [damaged.segments((shard + 1) % 3)[0].read_bytes() if copied else b"x" for shard in range(3)]
            for stray, content in zip(strays, data, strict=True):
                stray.write_bytes(content)
            if rebuilt:
                for name in NAMES:
                    (damaged.directory / "journal" / name).unlink()
                assert damaged.repair(None).rebuilt
            report = damaged.verify()
            assert report.whole
            assert len(report.remarks) == len(strays)
            assert all(any(str(stray) in remark and "stray" in remark for remark in report.remarks) for stray in strays)
            for _ in range(2):
                async with running(damaged.directory, ManualClock()) as (journal, recovered):
                    assert recovered.reset_shards == () or rebuilt
                    assert all(any(str(stray) in note for note in recovered.notes) for stray in strays)
                    assert find_holes(journal.spans()) == []
                    assert await read_all(journal) == damaged.rows
            assert [stray.read_bytes() for stray in strays] == data


@pytest.mark.parametrize("column", ["key", "value"])
async def test_archive_of_another_journal_is_refused_and_nothing_is_changed(damaged: KilledJournal, column: str) -> None:
    damaged.damage()
    rows = damaged.archive.tables[1]
    other = pa.array([b"another"] * len(rows) if column == "value" else ["another key"] * len(rows), rows[column].type)
    foreign = FakeArchive({1: rows.set_column(rows.schema.get_field_index(column), column, other)})
    before = damaged.files()
    with pytest.raises(UserMistake, match="another journal"):
        damaged.repair(foreign.rows)
    assert damaged.files() == before


async def test_gap_rows_of_the_archive_fill_no_hole(damaged: KilledJournal) -> None:
    lost = damaged.damage()
    rows = damaged.archive.tables[1]
    gaps = pa.array(["gap"] * len(rows), rows["event"].type)
    archive = FakeArchive({1: rows.set_column(rows.schema.get_field_index("event"), "event", gaps)})
    assert damaged.repair(archive.rows) == Repaired(False, 0, len(lost), [])


async def test_repair_rebuilds_a_missing_record_without_losing_rows(damaged: KilledJournal) -> None:
    for name in NAMES:
        (damaged.directory / "journal" / name).unlink()
    report = damaged.verify()
    assert (report.format, report.whole, report.holes) == (0, False, [])
    assert "the manifest cannot be read" in report.problems[0]
    assert damaged.repair(None) == Repaired(True, 0, 0, [])
    async with running(damaged.directory, ManualClock()) as (journal, recovered):
        assert recovered.reset_shards == (0, 1, 2)
        assert [note[:33] for note in recovered.notes] == ["every stream begins a new epoch: "]
        assert await read_all(journal) == damaged.rows


async def test_journal_in_use_is_not_repaired(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock()) as (journal, _):
        await journal.write([publication("a", 1)])
        with pytest.raises(UserMistake, match="another server uses this journal"):
            repair(tmp_path, None, check_progress, Disk())


async def test_repair_reports_missing_states_and_the_next_start_rebuilds_them(tmp_path: Path) -> None:
    clock = ManualClock()
    options: dict[str, Any] = {"shards": 1, "segment_size": 4000, "retention": 100.0, "for_archive": False}
    async with running(tmp_path, clock, **options) as (journal, _):
        for offset in range(1, 31):
            await journal.write([publication("busy", offset, at=clock())])
            clock.advance(10)
        await journal.sweep()
        assert journal.spans()[0].first > 1
    assert repair(tmp_path, None, check_progress, QuickDisk()).stateless == ()
    for path in tmp_path.rglob("*.state"):
        path.unlink()
    assert "state of producers" in verify(tmp_path, check_progress).problems[0]
    assert repair(tmp_path, None, check_progress, QuickDisk()).stateless == (0,)
    async with running(tmp_path, clock, **options):
        pass
    assert verify(tmp_path, check_progress).whole


async def test_repair_of_the_first_rows_restores_the_state(damaged: KilledJournal) -> None:
    for path in (*damaged.segments()[:1], *(damaged.directory / "journal" / "shard=01").glob("*.state")):
        path.unlink()
    assert damaged.repair(None).stateless == (1,)
    assert damaged.repair(damaged.archive.rows).stateless == ()

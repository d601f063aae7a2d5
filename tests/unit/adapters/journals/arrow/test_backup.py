"""Backups contain every row acknowledged before they started, while the journal runs on."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ropewalk.adapters.journals.arrow import backup
from ropewalk.adapters.journals.arrow.backup import JournalCopy, View, as_committed, view
from ropewalk.adapters.journals.arrow.maintenance import verify
from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import Row, ShardMark, ShardSpan
from ropewalk.testing.clock import ManualClock
from tests.journals import QuickDisk, by_shard, publication, read_all, running


def back_up(directory: Path, copy: Path) -> Path:
    journal = JournalCopy(directory / "journal", copy / "journal", lambda _, __: None, QuickDisk())
    journal.consumers()
    journal.rows()
    return copy


def whole_groups(found: dict[int, dict[int, Row]], groups: list[list[Row]]) -> bool:
    """Whether each group is there completely or not at all."""
    rows = {row for of_shard in found.values() for row in of_shard.values()}
    return all(len(rows & set(group)) in (0, len(group)) for group in groups)


@pytest.mark.parametrize("options", [{}, {"retention": 30.0, "for_archive": False}], ids=["all is kept", "old rows go"])
async def test_backup_under_load_has_all_acknowledged_rows_and_only_whole_groups(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    chance = random.Random(7)
    clock = ManualClock()
    groups: list[list[Row]] = []
    async with running(tmp_path / "alive", clock, segment_size=20_000, **options) as (journal, _):
        going_on = True
        grown = asyncio.Event()

        async def write() -> None:
            while going_on:
                number = len(groups)
                group = [publication(f"stream {each}", number, at=clock()) for each in range(chance.randrange(1, 30))]
                await journal.write(group)
                groups.append(group)
                grown.set()
                clock.advance(1.0)
                if number % 10 == 0:
                    await journal.sweep()

        writing = asyncio.create_task(write())
        backups: list[tuple[Path, int]] = []
        while len(backups) < 4:
            while len(groups) < 40 * (len(backups) + 1):
                grown.clear()
                await grown.wait()
            before = len(groups)
            copy = await asyncio.to_thread(back_up, tmp_path / "alive", tmp_path / f"copy {len(backups)}")
            backups.append((copy, before))
        going_on = False
        await writing
        spans = {span.shard: span for span in journal.spans()}
    placed = by_shard([row for group in groups for row in group])
    for copy, before in backups:
        acknowledged = by_shard([row for group in groups[:before] for row in group])
        assert verify(copy, lambda _, __: None).whole
        async with running(copy, clock) as (journal, recovered):
            assert recovered.reset_shards == (0, 1, 2)
            assert [note.startswith("every stream begins a new epoch") for note in recovered.notes] == [True]
            found = await read_all(journal)
            for shard, rows in found.items():
                assert all(placed[shard][position] == row for position, row in rows.items())
                assert max(rows) >= len(acknowledged[shard]) - 1, "rows acknowledged before the backup"
                assert sorted(rows) == list(range(min(rows), max(rows) + 1))
                assert journal.spans()[2 * shard].epoch == spans[shard].epoch
            if not options:
                assert whole_groups(found, groups)
                assert all(min(rows) == 0 for rows in found.values())
        async with running(copy, clock) as (journal, recovered):
            assert (recovered.reset_shards, recovered.notes) == ((), ())
            assert await read_all(journal) == found


async def test_backup_completes_while_every_shard_keeps_starting_new_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    written: list[list[Row]] = []
    async with running(tmp_path / "alive", ManualClock(), segment_size=2000) as (journal, _):

        async def begin_new_files() -> None:
            before = {path.parent for path in (tmp_path / "alive").rglob("*.arrow")}
            seen = set((tmp_path / "alive").rglob("*.arrow"))
            while {path.parent for path in set((tmp_path / "alive").rglob("*.arrow")) - seen} != before:
                written.append([publication(f"stream {each}", len(written)) for each in range(9)])
                await journal.write(written[-1])

        def view_of_new_files(directory: Path) -> View:
            asyncio.run_coroutine_threadsafe(begin_new_files(), loop).result()
            return view(directory)

        monkeypatch.setattr(backup, "view", view_of_new_files)
        copy = await asyncio.to_thread(back_up, tmp_path / "alive", tmp_path / "copy")
    async with running(copy, ManualClock()) as (journal, _):
        found = await read_all(journal)
        assert whole_groups(found, written)
        assert sum(len(rows) for rows in found.values()) == 9 * len(written)


async def test_segments_started_after_the_commits_were_read_are_left_out(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock(), shards=1, segment_size=2000) as (journal, _):
        for offset in range(1, 10):
            await journal.write([publication("a", offset)])
        seen = view(tmp_path / "journal")
    [[chain]] = seen.chains
    first, second, *later = chain.paths
    assert later
    committed = replace(seen.committed, ends={0: int(second.stem)})
    earlier = as_committed(replace(seen, committed=committed))
    assert earlier is not None
    assert earlier.chains[0][0].paths == [first, second]
    assert as_committed(replace(seen, committed=committed, chains=[[replace(chain, paths=later)]])) is None


async def test_restored_backup_does_not_reuse_positions_written_after_it(tmp_path: Path) -> None:
    async with running(tmp_path / "alive", ManualClock(), shards=1) as (journal, _):
        await journal.write([publication("a", 1)])
    copy = back_up(tmp_path / "alive", tmp_path / "copy")
    async with running(tmp_path / "alive", ManualClock(), shards=1) as (journal, _):
        await journal.write([publication("a", 2, b"after the backup")])
        given = journal.spans()[-1]
    async with running(copy, ManualClock(), shards=1) as (journal, recovered):
        assert recovered.tips == []
        assert journal.spans()[0] == ShardSpan(0, given.epoch, 0, 1)
        assert journal.spans()[1].first > given.end
        assert journal.spans()[1].epoch != given.epoch


async def test_backup_includes_consumers_producers_and_archived_positions(tmp_path: Path) -> None:
    clock = ManualClock()
    options: dict[str, Any] = {"shards": 1, "segment_size": 4000, "retention": 10.0}
    async with running(tmp_path / "alive", clock, **options) as (journal, _):
        await journal.write([publication("a", 1, at=clock(), producer="app", sequence=7)])
        for offset in range(2, 30):
            await journal.write([publication("a", offset, at=clock())])
            clock.advance(10)
        await journal.pin("reader", {0: ShardMark("e", 3)})
        journal.mark_archived({0: 20})
        await journal.sweep()
        await journal.move("reader", {0: ShardMark("e", 20)})
        await journal.sweep()
        assert journal.spans()[0].first > 5, "the row of the producer is gone"
        copy = back_up(tmp_path / "alive", tmp_path / "copy")
    async with running(copy, clock, **options) as (journal, recovered):
        assert recovered.producers == {("app", 0): 7}
        assert journal.archived_ends() == {0: 20}
        assert [(consumer.name, consumer.marks[0].position) for consumer in journal.consumers()] == [("reader", 20)]


async def test_damaged_journal_is_copied_unchanged(tmp_path: Path) -> None:
    async with running(tmp_path / "alive", ManualClock(), shards=1) as (journal, _):
        for offset in range(1, 31):
            await journal.write([publication("a", offset)])
    (path,) = (tmp_path / "alive").rglob("*.arrow")
    data = bytearray(path.read_bytes())
    data[data.index(b"a 12")] ^= 1
    path.write_bytes(data)
    copy = back_up(tmp_path / "alive", tmp_path / "copy")
    assert (copy / path.relative_to(tmp_path / "alive")).read_bytes() == data
    async with running(copy, ManualClock(), shards=1) as (journal, _):
        assert sorted((await read_all(journal))[0]) == [*range(11), *range(12, 30)]


def test_backup_without_a_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match="no journal in"):
        JournalCopy(tmp_path / "journal", tmp_path / "copy" / "journal", lambda _, __: None).rows()

"""Compaction of the archive: rows are kept, also during concurrent commits, and damaged files are skipped."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

from ropewalk.pipeline.archive import Compaction, archived_positions, compact
from ropewalk.pipeline.archive.files import checked_files
from ropewalk.pipeline.archive.layout import partitioned, write_file
from ropewalk.pipeline.archive.log import replace
from ropewalk.pipeline.tiered import ArchiveTable
from tests.archive_writer import Scribe, cut_file, empty_file, flip_payload
from tests.unit.pipeline.archives import batch_file, messages, read_rows


def test_compaction_keeps_all_rows_in_one_sorted_file_per_day(scribe: Scribe) -> None:
    for first in range(1, 41, 10):
        scribe.archive([*messages("b", first, first + 9), *messages("a", first, first + 9, second=3600)])
    before = read_rows(scribe)

    assert compact(str(scribe.root)) == Compaction(files_before=8, files_after=2, rows=80)

    assert read_rows(scribe) == before
    paths = DeltaTable(scribe.root).file_uris()
    assert len(paths) == 2
    for path in paths:
        rows = pq.read_table(path, partitioning=None)
        assert rows == rows.sort_by([("stream", "ascending"), ("offset", "ascending")])
    assert compact(str(scribe.root)) == Compaction()


def test_compaction_rewrites_new_rows_and_not_the_whole_table(scribe: Scribe) -> None:
    """The number of rewritten rows grows as n log n. Rewriting the whole table each time would take 8,400 rows."""
    rewritten = 0
    for first in range(1, 401, 10):
        scribe.archive(messages("a", first, first + 9))
        rewritten += compact(str(scribe.root)).rows
    assert len(read_rows(scribe)) == 400
    assert rewritten < 400 * 8
    assert len(DeltaTable(scribe.root).file_uris()) <= 8


def test_batch_during_a_compaction_stays_archived(scribe: Scribe, monkeypatch: pytest.MonkeyPatch) -> None:
    for first in (1, 11):
        scribe.archive(messages("a", first, first + 9))

    def commit_after_a_batch(**properties: Any) -> CommitProperties:
        monkeypatch.undo()
        scribe.archive(messages("a", 21, 30))
        return CommitProperties(**properties)

    monkeypatch.setattr("ropewalk.pipeline.archive.log.CommitProperties", commit_after_a_batch)
    assert compact(str(scribe.root)).files_after == 1
    assert archived_positions(str(scribe.root)) == {0: 30}
    scribe.archive(messages("a", 31, 40))
    assert archived_positions(str(scribe.root)) == {0: 40}


def test_compaction_can_be_limited_to_days_before_a_date(scribe: Scribe) -> None:
    for first in (1, 11):
        scribe.archive([*messages("b", first, first + 9), *messages("a", first, first + 9, second=3600)])
    assert compact(str(scribe.root), before="2026-03-02").files_before == 2
    assert len(DeltaTable(scribe.root).file_uris()) == 3


def test_compaction_limits_the_size_of_files(scribe: Scribe) -> None:
    for first in range(1, 61, 10):
        scribe.archive(messages("a", first, first + 9))
    largest = max(pa.table(DeltaTable(scribe.root).get_add_actions(True))["size_bytes"].to_pylist())
    before = read_rows(scribe)

    assert compact(str(scribe.root), max_bytes=2 * largest + 1).files_after == 3
    assert read_rows(scribe) == before


def test_concurrent_compactions_do_not_duplicate_rows(scribe: Scribe) -> None:
    scribe.archive(messages("a", 1, 10))
    first, second = DeltaTable(scribe.root), DeltaTable(scribe.root)
    [(date, shard, rows)] = partitioned(Scribe(scribe.root, 1).rows(messages("a", 1, 10)))
    old = pa.table(first.get_add_actions(True))["path"].to_pylist()
    replace(first, old, date, shard, write_file(scribe.root, date, shard, "first", rows))

    with pytest.raises(CommitFailedError):
        replace(second, old, date, shard, write_file(scribe.root, date, shard, "second", rows))

    assert len(read_rows(scribe)) == 10


def test_append_during_a_compaction_is_kept(scribe: Scribe) -> None:
    scribe.archive(messages("a", 1, 10))
    compacting = DeltaTable(scribe.root)
    old = pa.table(compacting.get_add_actions(True))["path"].to_pylist()
    [(date, shard, rows)] = partitioned(Scribe(scribe.root, 1).rows(messages("a", 1, 10)))
    scribe.archive(messages("a", 11, 20))

    replace(compacting, old, date, shard, write_file(scribe.root, date, shard, "compact", rows))

    assert read_rows(scribe)["offset"].to_pylist() == list(range(1, 21))


@pytest.mark.parametrize("damage", [flip_payload, cut_file, empty_file, Path.unlink])
def test_compaction_skips_and_reports_a_damaged_file(scribe: Scribe, damage: Callable[[Path], None]) -> None:
    """Merged rows would get a valid digest, and an audit could no longer detect the damage."""
    for first in range(1, 51, 10):
        scribe.archive(messages("a", first, first + 9))
    damaged = batch_file(scribe, 2)
    damage(damaged)

    done = compact(str(scribe.root))

    assert (done.files_before, done.files_after, done.rows) == (4, 2, 40)
    assert [fault.split()[0] for fault in done.damaged] == [str(damaged.relative_to(scribe.root))]
    opened = DeltaTable(scribe.root)
    assert len(opened.file_uris()) == 3
    assert [fault.path for fault in checked_files(opened, str(scribe.root))] == [str(damaged.relative_to(scribe.root))]


def test_file_that_another_tool_has_rewritten_is_joined_and_read(scribe: Scribe) -> None:
    for first in (1, 11, 21):
        scribe.archive(messages("a", first, first + 9))
    DeltaTable(scribe.root).delete("position = 4")
    rewritten = ArchiveTable(str(scribe.root)).rows(0, 0, 30)
    assert sum(len(table) for table in rewritten) == 29
    assert compact(str(scribe.root)).files_after == 1
    assert read_rows(scribe)["position"].to_pylist() == [n for n in range(30) if n != 4]

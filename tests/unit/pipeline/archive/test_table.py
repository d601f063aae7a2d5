"""The archive's table: what is claimed to be archived, what compaction may and may not do, and what vacuum leaves alone."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from ropewalk.model.errors import UserMistake
from ropewalk.model.messages import Registered
from ropewalk.pipeline.archive import Compaction, archived_positions, compact, vacuum
from ropewalk.pipeline.archive.layout import TIMELESS, Written, partitioned, write_file
from ropewalk.pipeline.archive.log import append, replace
from tests.archiving import Scribe, message


@pytest.fixture
def scribe(tmp_path: Path) -> Scribe:
    return Scribe(tmp_path / "archive", shards=1)


def run(stream: str, first: int, last: int, second: float = 0.0) -> list[Registered]:
    return [message(stream, offset, second=second) for offset in range(first, last + 1)]


def table(scribe: Scribe) -> pa.Table:
    return DeltaTable(scribe.root).to_pyarrow_table().sort_by("position")


def written(scribe: Scribe, name: str, rows: pa.Table) -> list[Written]:
    return [write_file(scribe.root, date, shard, name, part) for date, shard, part in partitioned(rows)]


def test_what_is_archived_is_claimed_by_shard(scribe: Scribe) -> None:
    assert archived_positions(str(scribe.root)) == {}
    scribe.archive(run("a", 1, 30))
    scribe.archive(run("b", 1, 12), joined=[("a", "sid")])
    assert archived_positions(str(scribe.root)) == {0: 43}


def test_a_shard_with_a_hole_is_not_claimed(scribe: Scribe) -> None:
    """A journal lets go of what is claimed; rows that a query left out would be lost."""
    whole = scribe.rows(run("a", 1, 30))
    append(str(scribe.root), "query", 0, written(scribe, "some", whole.filter(pa.compute.not_equal(whole["offset"], 7))))
    assert archived_positions(str(scribe.root)) == {}


def test_a_batch_is_committed_once(scribe: Scribe) -> None:
    files = written(scribe, "one", scribe.rows(run("a", 1, 3)))
    assert append(str(scribe.root), "query", 4, files)
    assert not append(str(scribe.root), "query", 4, written(scribe, "two", scribe.rows(run("a", 1, 3))))
    assert len(table(scribe)) == 3


def test_positions_that_are_archived_already_are_refused_whoever_brings_them(scribe: Scribe) -> None:
    rows = scribe.rows(run("a", 1, 3))
    append(str(scribe.root), "query", 0, written(scribe, "one", rows))
    with pytest.raises(UserMistake, match="archived already"):
        append(str(scribe.root), "other query", 0, written(scribe, "two", rows))


def test_a_row_without_a_time_is_kept_with_its_neighbours(scribe: Scribe) -> None:
    rows = scribe.rows([*run("a", 1, 2), *run("a", 3, 3, second=3600)])
    times = rows["timestamp"].to_pylist()
    at = rows.schema.get_field_index("timestamp")
    gap = rows.set_column(at, rows.schema.field("timestamp"), pa.array([None, *times[1:]], rows.schema.field("timestamp").type))
    assert {(date, len(part)) for date, _, part in partitioned(gap)} == {("2026-03-01", 2), ("2026-03-02", 1)}
    alone = gap.slice(0, 1)
    assert [(date, len(part)) for date, _, part in partitioned(alone)] == [(TIMELESS, 1)]


def test_compaction_keeps_every_row_and_leaves_one_sorted_file_a_day(scribe: Scribe) -> None:
    for first in range(1, 41, 10):
        scribe.archive([*run("b", first, first + 9), *run("a", first, first + 9, second=3600)])
    before = table(scribe)

    assert compact(str(scribe.root)) == Compaction(files_before=8, files_after=2, rows=80)

    assert table(scribe) == before
    paths = DeltaTable(scribe.root).file_uris()
    assert len(paths) == 2
    for path in paths:
        rows = pq.read_table(path, partitioning=None)
        assert rows == rows.sort_by([("stream", "ascending"), ("offset", "ascending")])
    assert compact(str(scribe.root)) == Compaction()


def test_compaction_takes_days_before_a_date_only(scribe: Scribe) -> None:
    for first in (1, 11):
        scribe.archive([*run("b", first, first + 9), *run("a", first, first + 9, second=3600)])
    assert compact(str(scribe.root), before="2026-03-02").files_before == 2
    assert len(DeltaTable(scribe.root).file_uris()) == 3


def test_compaction_makes_no_file_larger_than_asked(scribe: Scribe) -> None:
    for first in range(1, 61, 10):
        scribe.archive(run("a", first, first + 9))
    largest = max(pa.table(DeltaTable(scribe.root).get_add_actions(True))["size_bytes"].to_pylist())
    before = table(scribe)

    assert compact(str(scribe.root), max_bytes=2 * largest + 1).files_after == 3
    assert table(scribe) == before


def test_two_compactions_from_the_same_state_do_not_double_rows(scribe: Scribe) -> None:
    scribe.archive(run("a", 1, 10))
    first, second = DeltaTable(scribe.root), DeltaTable(scribe.root)
    [(date, shard, rows)] = partitioned(Scribe(scribe.root, 1).rows(run("a", 1, 10)))
    old = pa.table(first.get_add_actions(True))["path"].to_pylist()
    replace(first, old, date, shard, write_file(scribe.root, date, shard, "first", rows))

    with pytest.raises(CommitFailedError):
        replace(second, old, date, shard, write_file(scribe.root, date, shard, "second", rows))

    assert len(table(scribe)) == 10


def test_appending_goes_on_while_a_compaction_runs(scribe: Scribe) -> None:
    scribe.archive(run("a", 1, 10))
    compacting = DeltaTable(scribe.root)
    old = pa.table(compacting.get_add_actions(True))["path"].to_pylist()
    [(date, shard, rows)] = partitioned(Scribe(scribe.root, 1).rows(run("a", 1, 10)))
    scribe.archive(run("a", 11, 20))

    replace(compacting, old, date, shard, write_file(scribe.root, date, shard, "compact", rows))

    assert table(scribe)["offset"].to_pylist() == list(range(1, 21))


def test_vacuum_deletes_what_no_commit_names_once_it_is_old_enough(scribe: Scribe) -> None:
    scribe.archive(run("a", 1, 10))
    left = written(scribe, "left by a failed attempt", scribe.rows(run("a", 11, 20)))[0].path
    assert vacuum(str(scribe.root)) == []
    assert len(vacuum(str(scribe.root), timedelta(0), dry_run=True)) == 1
    assert (scribe.root / left).exists()

    vacuum(str(scribe.root), timedelta(0))

    assert not (scribe.root / left).exists()
    assert len(table(scribe)) == 10

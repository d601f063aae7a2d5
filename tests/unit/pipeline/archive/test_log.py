"""The archive's table: what is claimed to be archived, what compaction may and may not do, and what vacuum leaves alone."""

import json
import os
import shutil
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import GENERATION_SIZE, ShardSpan
from ropewalk.model.messages import Registered
from ropewalk.pipeline.archive import Compaction, archived_positions, binding, compact, vacuum
from ropewalk.pipeline.archive.files import checked_files
from ropewalk.pipeline.archive.layout import TIMELESS, Written, partitioned, write_file
from ropewalk.pipeline.archive.log import append, replace
from ropewalk.pipeline.context import Context, Place
from ropewalk.pipeline.jobs.compact import CompactOptions
from ropewalk.pipeline.jobs.compact import compact as compact_job
from ropewalk.pipeline.jobs.replay import ReplayOptions, replay
from tests.archive_writer import Scribe, flip_payload, message


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


def test_a_compaction_rewrites_what_came_since_the_last_not_the_whole_table(scribe: Scribe) -> None:
    """Rows rewritten in all grow like rows times the logarithm of rounds: with the whole table each time it would be 8,400."""
    rewritten = 0
    for first in range(1, 401, 10):
        scribe.archive(run("a", first, first + 9))
        rewritten += compact(str(scribe.root)).rows
    assert len(table(scribe)) == 400
    assert rewritten < 400 * 8
    assert len(DeltaTable(scribe.root).file_uris()) <= 8


def test_a_compaction_that_is_overtaken_by_a_batch_takes_nothing_back_of_what_is_archived(
    scribe: Scribe, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in (1, 11):
        scribe.archive(run("a", first, first + 9))

    def overtaken(**properties: Any) -> CommitProperties:
        monkeypatch.undo()
        scribe.archive(run("a", 21, 30))
        return CommitProperties(**properties)

    monkeypatch.setattr("ropewalk.pipeline.archive.log.CommitProperties", overtaken)
    assert compact(str(scribe.root)).files_after == 1
    assert archived_positions(str(scribe.root)) == {0: 30}
    scribe.archive(run("a", 31, 40))
    assert archived_positions(str(scribe.root)) == {0: 40}


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


def test_a_new_generation_of_a_shard_is_claimed_once_the_older_one_is_archived_to_its_end(scribe: Scribe) -> None:
    scribe.archive(run("a", 1, 10))
    scribe.begin_generation()
    scribe.archive(run("b", 1, 4))
    root, end = str(scribe.root), GENERATION_SIZE + 4
    assert archived_positions(root) == {0: end}
    older, newer = ShardSpan(0, "e", 0, 10), ShardSpan(0, "f", GENERATION_SIZE, end)
    assert archived_positions(root, {0: [older, newer]}) == {0: end}
    assert archived_positions(root, {0: [ShardSpan(0, "e", 0, 11), newer]}) == {0: 10}, "a row of the older one is missing"


def test_two_generations_in_one_batch_become_two_files(scribe: Scribe) -> None:
    older = scribe.rows(run("a", 1, 10))
    scribe.begin_generation()
    both = pa.concat_tables([older, scribe.rows(run("b", 1, 4))])
    append(str(scribe.root), "query", 0, written(scribe, "both", both))
    assert len(DeltaTable(scribe.root).file_uris()) == 2
    assert archived_positions(str(scribe.root)) == {0: GENERATION_SIZE + 4}
    compact(str(scribe.root))
    assert archived_positions(str(scribe.root)) == {0: GENERATION_SIZE + 4}


@pytest.mark.parametrize("damage", ["gone", "cut short"])
def test_what_cannot_be_read_back_is_not_claimed(scribe: Scribe, damage: str) -> None:
    for first in (1, 11, 21):
        scribe.archive(run("a", first, first + 9))
    path = scribe.root / pa.table(DeltaTable(scribe.root).get_add_actions(True)).sort_by("min.position")["path"].to_pylist()[-1]
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    assert archived_positions(str(scribe.root)) == {0: 20}


def test_what_the_journal_had_lost_and_the_archive_tells_does_not_keep_the_rest_from_being_claimed(scribe: Scribe) -> None:
    """Otherwise a shard that was damaged once would never be trimmed again."""
    rows = scribe.rows(run("a", 1, 30))
    lost = {"event": "gap", "position": 10, "shard": 0, "detail": '{"reason": "damaged", "epoch": "e", "first": 10, "end": 15}'}
    gap = pa.Table.from_pylist([lost], schema=rows.schema)
    append(str(scribe.root), "query", 0, written(scribe, "one", pa.concat_tables([rows.slice(0, 10), gap, rows.slice(15)])))
    assert archived_positions(str(scribe.root)) == {0: 30}
    compact(str(scribe.root))
    assert archived_positions(str(scribe.root)) == {0: 30}


# --- files that are not as they were written --------------------------------------------------------------------------


def file_of(scribe: Scribe, batch: int) -> Path:
    [path] = scribe.root.rglob(f"query-{batch}-*.parquet")
    return path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip_payload, cut, empty, Path.unlink])
def test_compaction_leaves_a_damaged_file_alone_and_names_it(scribe: Scribe, damage: Callable[[Path], None]) -> None:
    """Joined with others its rows would be in a file with a right digest, and no audit could find the change any more."""
    for first in range(1, 51, 10):
        scribe.archive(run("a", first, first + 9))
    damaged = file_of(scribe, 2)
    damage(damaged)

    done = compact(str(scribe.root))

    assert (done.files_before, done.files_after, done.rows) == (4, 2, 40)
    assert [fault.split()[0] for fault in done.damaged] == [str(damaged.relative_to(scribe.root))]
    opened = DeltaTable(scribe.root)
    assert len(opened.file_uris()) == 3
    assert [fault.path for fault in checked_files(opened, str(scribe.root))] == [str(damaged.relative_to(scribe.root))]


def test_the_job_fails_when_compaction_meets_a_damaged_file(scribe: Scribe, tmp_path: Path) -> None:
    for first in (1, 11, 21):
        scribe.archive(run("a", first, first + 9))
    said: list[str] = []
    context = Context(
        Place("", "", str(scribe.root), tmp_path / "state"), lambda: pytest.fail("Spark is not needed"), said.append
    )
    flip_payload(file_of(scribe, 2))

    assert compact_job(context, CompactOptions()) == 1
    assert f"{file_of(scribe, 2).name} was changed after it was written" in said[-1]


def test_a_damaged_file_is_not_replayed(scribe: Scribe, tmp_path: Path) -> None:
    for first in (1, 11):
        scribe.archive(run("a", first, first + 9))
    context = Context(Place("", "", str(scribe.root), tmp_path), lambda: pytest.fail("found out before Spark is started"))
    flip_payload(file_of(scribe, 1))

    with pytest.raises(UserMistake, match=f"{file_of(scribe, 1).name} was changed"):
        replay(context, ReplayOptions())


# --- vacuum -----------------------------------------------------------------------------------------------------------


def left_behind(scribe: Scribe, name: str) -> Path:
    return scribe.root / written(scribe, name, scribe.rows(run("z", 1, 10)))[0].path


def aged(path: Path, age: timedelta) -> Path:
    moment = time.time() - age.total_seconds()
    os.utime(path, (moment, moment))
    return path


def test_vacuum_deletes_what_a_failed_attempt_of_a_committed_batch_left(scribe: Scribe) -> None:
    scribe.archive(run("a", 1, 10))
    left = left_behind(scribe, "query-0-0-1-0badf00d")
    assert vacuum(str(scribe.root)) == []
    assert vacuum(str(scribe.root), timedelta(0), dry_run=True) == [str(left.relative_to(scribe.root))]
    assert left.exists()

    vacuum(str(scribe.root), timedelta(0))

    assert not left.exists()
    assert len(table(scribe)) == 10


@pytest.mark.parametrize("name", ["query-1-0-0-0badf00d", "another-0-0-0-0badf00d", "compact-0badf00d"])
def test_vacuum_leaves_what_may_be_of_a_commit_under_way_whatever_is_asked(scribe: Scribe, name: str) -> None:
    """A batch that was written and not committed yet lost its rows to a retention of seconds."""
    scribe.archive(run("a", 1, 10))
    rows = scribe.rows(run("a", 11, 20))
    under_way = written(scribe, name, rows)
    assert vacuum(str(scribe.root), timedelta(0)) == []
    append(str(scribe.root), "query", 1, under_way)
    assert len(table(scribe)) == 20

    left = left_behind(scribe, name.replace("-1-", "-2-").replace("0badf00d", "0badf00e"))
    assert vacuum(str(scribe.root), timedelta(0), force=True) == [str(left.relative_to(scribe.root))]
    left = aged(left_behind(scribe, name.replace("-1-", "-2-").replace("0badf00d", "0badf00f")), timedelta(hours=25))
    assert vacuum(str(scribe.root), timedelta(0)) == [str(left.relative_to(scribe.root))]
    assert len(table(scribe)) == 20


def test_vacuum_keeps_files_that_readers_of_an_older_state_may_have_open_for_seconds_too(scribe: Scribe) -> None:
    for first in (1, 11):
        scribe.archive(run("a", first, first + 9))
    old = [aged(Path(uri.removeprefix("file://")), timedelta(days=2)) for uri in DeltaTable(scribe.root).file_uris()]
    compact(str(scribe.root))
    assert vacuum(str(scribe.root), timedelta(seconds=50)) == [], "compacted just now, though written long ago"
    assert all(path.exists() for path in old)
    assert len(vacuum(str(scribe.root), timedelta(0))) == 2
    assert len(table(scribe)) == 20


# --- a query and its table --------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path, scribe: Scribe) -> str:
    """Of a query that has archived one batch."""
    place = tmp_path / "checkpoint"
    place.mkdir()
    scribe.archive(run("a", 1, 10))
    binding.bind(str(scribe.root), str(place))
    return str(place)


def test_a_query_goes_on_in_its_own_table(scribe: Scribe, checkpoint: str) -> None:
    binding.check(str(scribe.root), checkpoint, "query", 1)
    scribe.archive(run("a", 11, 20))
    compact(str(scribe.root))
    binding.check(str(scribe.root), checkpoint, "query", 2)


def test_a_table_that_vanished_is_refused_not_begun_anew(scribe: Scribe, checkpoint: str) -> None:
    shutil.rmtree(scribe.root)
    with pytest.raises(UserMistake, match="no table any more"):
        binding.check(str(scribe.root), checkpoint, "query", 1)
    with pytest.raises(UserMistake, match="no table any more"):
        binding.check_started(str(scribe.root), checkpoint)


def test_another_table_in_the_same_place_is_refused(scribe: Scribe, checkpoint: str) -> None:
    shutil.rmtree(scribe.root)
    Scribe(scribe.root, shards=1).archive(run("a", 1, 10))
    with pytest.raises(UserMistake, match="another table"):
        binding.check(str(scribe.root), checkpoint, "query", 1)


def test_an_older_copy_of_the_table_is_refused(scribe: Scribe, checkpoint: str, tmp_path: Path) -> None:
    shutil.copytree(scribe.root, tmp_path / "copy")
    scribe.archive(run("a", 11, 20))
    binding.bind(str(scribe.root), checkpoint)
    shutil.rmtree(scribe.root)
    shutil.move(tmp_path / "copy", scribe.root)
    with pytest.raises(UserMistake, match="older copy"):
        binding.check(str(scribe.root), checkpoint, "query", 2)


def test_a_table_that_lost_its_last_commit_is_refused(scribe: Scribe, checkpoint: str) -> None:
    """It is the same table at the same version, and would be gone on with behind a hole."""
    scribe.archive(run("a", 11, 20))
    binding.bind(str(scribe.root), checkpoint)
    binding.check(str(scribe.root), checkpoint, "query", 2)
    last = max((scribe.root / "_delta_log").glob("*.json"))
    last.write_bytes(b"")
    with pytest.raises(UserMistake, match=r"lost what was archived last .shard 0 ended at position 20 and ends at 10"):
        binding.check(str(scribe.root), checkpoint, "query", 2)
    with pytest.raises(UserMistake, match="lost what was archived last"):
        binding.check_started(str(scribe.root), checkpoint)


def test_a_binding_of_an_older_version_is_taken_at_its_word(scribe: Scribe, checkpoint: str) -> None:
    path = Path(checkpoint) / binding.FILE
    older = json.loads(path.read_bytes())
    del older["reached"]
    path.write_text(json.dumps(older))
    binding.check(str(scribe.root), checkpoint, "query", 1)


def test_a_query_whose_checkpoint_is_elsewhere_is_known_by_its_commits(scribe: Scribe) -> None:
    root = str(scribe.root)
    binding.check(root, "", "query", 0)
    with pytest.raises(UserMistake, match="has nothing of it"):
        binding.check(root, "", "query", 3)
    scribe.archive(run("a", 1, 10))
    binding.check(root, "hdfs://somewhere/checkpoint", "query", 3)
    with pytest.raises(UserMistake, match="has nothing of it"):
        binding.check(root, "", "another", 3)

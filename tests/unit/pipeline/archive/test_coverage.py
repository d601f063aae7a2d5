"""Positions count as archived only where a file of the table has them."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import GENERATION_SIZE, ShardSpan
from ropewalk.pipeline.archive import archived_positions, compact
from ropewalk.pipeline.archive.coverage import Missing, archived_end, missing_positions
from ropewalk.pipeline.archive.log import Extent, append, held
from tests.archive_writer import Scribe
from tests.unit.pipeline.archives import messages, write_files


def missing(scribe: Scribe) -> list[Missing]:
    return missing_positions(DeltaTable(scribe.root), str(scribe.root))


def last_commit(root: Path) -> Path:
    return max((root / "_delta_log").glob("*.json"))


def test_rows_deleted_by_another_tool_are_not_archived(scribe: Scribe) -> None:
    scribe.archive(messages("a", 1, 20))
    scribe.archive(messages("a", 21, 40))
    DeltaTable(scribe.root).delete("position >= 12")
    assert archived_positions(str(scribe.root)) == {0: 12}
    assert missing(scribe) == [Missing(0, 12, 40)]


INLINE_VECTOR = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
"""The rows 3, 4, 7, 11, 18 and 29, as an example of Delta's specification writes them."""


def enable_deletion_vectors(scribe: Scribe, vector: dict[str, object] | None) -> None:
    """A commit as Spark writes it: the table may have deletion vectors, and its last file has one."""
    adds = [json.loads(line)["add"] for line in last_commit(scribe.root).read_text().splitlines() if '"add"' in line]
    feature = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    actions: list[object] = [{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **feature}}]
    if vector is not None:
        actions.append({"remove": {"path": adds[-1]["path"], "deletionTimestamp": 1, "dataChange": True}})
        actions.append({"add": {**adds[-1], "deletionVector": vector}})
    path = scribe.root / "_delta_log" / f"{DeltaTable(scribe.root).version() + 1:020}.json"
    path.write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize(
    "vector",
    [
        pytest.param({"storageType": "i", "pathOrInlineDv": INLINE_VECTOR, "sizeInBytes": 44, "cardinality": 6}, id="inline"),
        pytest.param(
            {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "sizeInBytes": 40, "cardinality": 6},
            id="missing",
        ),
    ],
)
def test_table_with_deletion_vectors_is_refused(scribe: Scribe, vector: dict[str, object]) -> None:
    scribe.archive(messages("a", 1, 40))
    enable_deletion_vectors(scribe, vector)
    with pytest.raises(UserMistake, match="deletion vectors"):
        archived_positions(str(scribe.root))


def test_table_that_may_have_deletion_vectors_and_has_none_is_read(scribe: Scribe) -> None:
    scribe.archive(messages("a", 1, 40))
    enable_deletion_vectors(scribe, None)
    assert archived_positions(str(scribe.root)) == {0: 40}


def test_file_removed_from_the_last_commit_is_not_archived(scribe: Scribe) -> None:
    scribe.archive(messages("a", 1, 10))
    scribe.archive([*messages("a", 11, 20), *messages("a", 21, 30, second=3600)])  # two days, so two files
    commit = last_commit(scribe.root)
    lines = commit.read_text().splitlines(keepends=True)
    newest = next(line for line in lines if '"add"' in line and "date=2026-03-02" in line)
    commit.write_text("".join(line for line in lines if line != newest))
    assert archived_positions(str(scribe.root)) == {0: 20}
    assert missing(scribe) == [Missing(0, 20, 30)]


def test_shard_whose_files_are_all_gone_is_reported_with_zero(scribe: Scribe) -> None:
    scribe.archive(messages("a", 1, 10))
    DeltaTable(scribe.root).delete()
    assert archived_positions(str(scribe.root)) == {0: 0}


def test_rows_at_interleaved_positions_in_files_of_two_days_are_archived(scribe: Scribe) -> None:
    day, night = messages("a", 1, 10), messages("a", 11, 20, second=3600)
    scribe.archive([each for pair in zip(day, night, strict=True) for each in pair])
    assert len(DeltaTable(scribe.root).file_uris()) == 2
    assert archived_positions(str(scribe.root)) == {0: 20}


def test_deleted_row_that_the_journal_no_longer_has_does_not_stop_its_retention(scribe: Scribe) -> None:
    scribe.archive(messages("a", 1, 30))
    DeltaTable(scribe.root).delete("position = 4")
    assert archived_positions(str(scribe.root)) == {0: 4}
    assert archived_positions(str(scribe.root), {0: [ShardSpan(0, "e", 3, 40)]}) == {0: 4}
    assert archived_positions(str(scribe.root), {0: [ShardSpan(0, "e", 20, 40)]}) == {0: 30}
    assert missing(scribe) == [Missing(0, 4, 5)]


@pytest.mark.parametrize("at_the_end", [False, True])
def test_row_for_lost_positions_covers_them_in_a_file_of_its_own(scribe: Scribe, at_the_end: bool) -> None:
    rows = scribe.rows(messages("a", 1, 30))
    lost = {"event": "gap", "position": 10, "shard": 0, "detail": '{"reason": "damaged", "epoch": "e", "first": 10, "end": 15}'}
    gap = pa.Table.from_pylist([lost], schema=rows.schema)
    batches = (
        [pa.concat_tables([rows.slice(0, 10), gap]), rows.slice(15)] if at_the_end else [rows.slice(0, 10), gap, rows.slice(15)]
    )
    for batch, part in enumerate(batches):
        append(str(scribe.root), "query", batch, write_files(scribe, f"batch {batch}", part))
    assert archived_positions(str(scribe.root)) == {0: 30}
    assert missing(scribe) == []
    compact(str(scribe.root))
    assert missing(scribe) == []


def test_archived_ranges_survive_any_number_of_other_commits(scribe: Scribe) -> None:
    scribe.archive(messages("a", 1, 10))
    DeltaTable(scribe.root).delete()
    version = DeltaTable(scribe.root).version()
    other = json.dumps({"commitInfo": {"timestamp": 0, "operation": "VACUUM START"}})
    for number in range(version + 1, version + 1502):
        (scribe.root / "_delta_log" / f"{number:020}.json").write_text(other)
    assert held(DeltaTable(scribe.root)) == [Extent(0, 0, 0, 9)]
    again = scribe.rows(messages("a", 1, 10))
    with pytest.raises(UserMistake, match="below the end of the archive"):
        append(
            str(scribe.root), "other", 0, write_files(scribe, "again", again.set_column(0, "position", [pa.array(range(10))]))
        )


def test_end_of_a_generation_that_neither_side_promises_more_of_leads_to_the_next() -> None:
    newer = GENERATION_SIZE
    extents = [Extent(0, 0, 0, 9), Extent(0, 1, newer, newer + 4)]
    runs = [(0, 10), (newer, newer + 5)]
    older_in_journal = [ShardSpan(0, "e", 0, 10), ShardSpan(0, "f", newer, newer + 9)]
    assert archived_end(extents, runs, older_in_journal) == newer + 5
    assert archived_end(extents, [(0, 8), runs[1]], older_in_journal) == 8
    assert archived_end(extents, [runs[0], (newer + 1, newer + 5)], older_in_journal) == 10, "the newer one lacks its beginning"
    assert archived_end(extents, [(0, 8), runs[1]], older_in_journal[1:]) == newer + 5, "the journal has only the newer one"
    assert archived_end(extents[:1], runs[:1], older_in_journal[1:]) == 10


def test_archive_that_begins_later_than_the_journal_lets_it_go() -> None:
    assert archived_end([Extent(0, 0, 5, 9)], [(5, 10)], [ShardSpan(0, "e", 0, 20)]) == 10
    assert archived_end([Extent(0, 0, 5, 9)], [(7, 10)], [ShardSpan(0, "e", 0, 20)]) == 0, "its beginning was deleted"

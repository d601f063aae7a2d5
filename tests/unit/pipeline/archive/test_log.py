"""The log of the archive: archived positions, appending and generations."""

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import GENERATION_SIZE, ShardSpan
from ropewalk.pipeline.archive import archived_positions, compact
from ropewalk.pipeline.archive.log import append
from tests.archive_writer import Scribe
from tests.unit.pipeline.archives import messages, read_rows, write_files


def test_archived_positions_are_counted_by_shard(scribe: Scribe) -> None:
    assert archived_positions(str(scribe.root)) == {}
    scribe.archive(messages("a", 1, 30))
    scribe.archive(messages("b", 1, 12), joined=[("a", "sid")])
    assert archived_positions(str(scribe.root)) == {0: 43}


def test_archived_position_ends_at_a_hole(scribe: Scribe) -> None:
    """The journal trims archived rows. Rows that a query left out would be lost."""
    whole = scribe.rows(messages("a", 1, 30))
    append(str(scribe.root), "query", 0, write_files(scribe, "some", whole.filter(pa.compute.not_equal(whole["offset"], 7))))
    assert archived_positions(str(scribe.root)) == {0: 6}


def test_batch_is_committed_once(scribe: Scribe) -> None:
    files = write_files(scribe, "one", scribe.rows(messages("a", 1, 3)))
    assert append(str(scribe.root), "query", 4, files)
    assert not append(str(scribe.root), "query", 4, write_files(scribe, "two", scribe.rows(messages("a", 1, 3))))
    assert len(read_rows(scribe)) == 3


def test_archived_positions_are_rejected_from_another_query(scribe: Scribe) -> None:
    rows = scribe.rows(messages("a", 1, 3))
    append(str(scribe.root), "query", 0, write_files(scribe, "one", rows))
    with pytest.raises(UserMistake, match="below the end of the archive"):
        append(str(scribe.root), "other query", 0, write_files(scribe, "two", rows))


def test_new_generation_counts_once_the_older_one_is_archived_completely(scribe: Scribe) -> None:
    scribe.archive(messages("a", 1, 10))
    scribe.begin_generation()
    scribe.archive(messages("b", 1, 4))
    root, end = str(scribe.root), GENERATION_SIZE + 4
    assert archived_positions(root) == {0: end}
    older, newer = ShardSpan(0, "e", 0, 10), ShardSpan(0, "f", GENERATION_SIZE, end)
    assert archived_positions(root, {0: [older, newer]}) == {0: end}
    assert archived_positions(root, {0: [ShardSpan(0, "e", 0, 11), newer]}) == {0: 10}, (
        "a row of the older generation is missing"
    )


def test_two_generations_in_one_batch_become_two_files(scribe: Scribe) -> None:
    older = scribe.rows(messages("a", 1, 10))
    scribe.begin_generation()
    both = pa.concat_tables([older, scribe.rows(messages("b", 1, 4))])
    append(str(scribe.root), "query", 0, write_files(scribe, "both", both))
    assert len(DeltaTable(scribe.root).file_uris()) == 2
    assert archived_positions(str(scribe.root)) == {0: GENERATION_SIZE + 4}
    compact(str(scribe.root))
    assert archived_positions(str(scribe.root)) == {0: GENERATION_SIZE + 4}


@pytest.mark.parametrize("damage", ["gone", "cut short"])
def test_unreadable_file_is_not_reported_as_archived(scribe: Scribe, damage: str) -> None:
    for first in (1, 11, 21):
        scribe.archive(messages("a", first, first + 9))
    path = scribe.root / pa.table(DeltaTable(scribe.root).get_add_actions(True)).sort_by("min.position")["path"].to_pylist()[-1]
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    assert archived_positions(str(scribe.root)) == {0: 20}


def test_rows_lost_by_the_journal_do_not_stop_the_archived_position(scribe: Scribe) -> None:
    """Otherwise a shard that was damaged once would never be trimmed again."""
    rows = scribe.rows(messages("a", 1, 30))
    lost = {"event": "gap", "position": 10, "shard": 0, "detail": '{"reason": "damaged", "epoch": "e", "first": 10, "end": 15}'}
    gap = pa.Table.from_pylist([lost], schema=rows.schema)
    append(str(scribe.root), "query", 0, write_files(scribe, "one", pa.concat_tables([rows.slice(0, 10), gap, rows.slice(15)])))
    assert archived_positions(str(scribe.root)) == {0: 30}
    compact(str(scribe.root))
    assert archived_positions(str(scribe.root)) == {0: 30}

"""Tables of jobs: rewriting rows, notes, compaction and damaged files."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.archive import vacuum
from ropewalk.pipeline.checked import DamagedFile
from ropewalk.pipeline.tables import JobTable, job_tables, join_files, read_table

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def figures(*minutes: int, value: int = 0) -> pa.Table:
    moments = [NOON + timedelta(minutes=minute) for minute in minutes]
    return pa.table(
        {
            "date": [moment.date().isoformat() for moment in moments],
            "minute": pa.array(moments, pa.timestamp("us", "UTC")),
            "value": [value] * len(moments),
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> JobTable:
    return JobTable(str(tmp_path / "tables" / "rollup"), "query", ["date"])


def values(tmp_path: Path) -> list[tuple[int, int]]:
    found = read_table(str(tmp_path / "tables" / "rollup"))
    assert found is not None
    rows = found.to_pylist()
    return sorted((int((row["minute"] - NOON).total_seconds() // 60), row["value"]) for row in rows)


def test_batch_rewrites_only_the_files_of_its_minutes(table: JobTable, tmp_path: Path) -> None:
    for batch in range(20):
        table.rewrite(batch, figures(batch, batch + 1, value=batch), "minute")
    assert values(tmp_path) == [(minute, minute) for minute in range(20)] + [(20, 19)]
    files = {uri: uri for uri in DeltaTable(tmp_path / "tables" / "rollup").file_uris()}
    table.rewrite(20, figures(20, 21, value=20), "minute")
    left = files.keys() - set(DeltaTable(tmp_path / "tables" / "rollup").file_uris())
    assert len(files) > 10
    assert len(left) == 1


def test_note_of_the_last_batch_survives_compaction(table: JobTable, tmp_path: Path) -> None:
    assert table.note() == ""
    table.rewrite(0, figures(0), "minute", note="one")
    table.rewrite(1, figures(1), "minute", note="two")
    join_files(str(tmp_path / "tables" / "rollup"))
    assert table.note() == "two"


def test_compaction_and_vacuum_keep_the_rows_in_one_file(table: JobTable, tmp_path: Path) -> None:
    for batch in range(10):
        table.rewrite(batch, figures(3 * batch, value=batch), "minute")
    [root] = job_tables(tmp_path)
    before = values(tmp_path)
    assert join_files(root) == 10
    assert len(vacuum(root, timedelta(0))) >= 10
    assert values(tmp_path) == before
    assert len(list(Path(root).glob("date=*/*.parquet"))) == 1


def test_table_of_another_query_is_rejected(table: JobTable, tmp_path: Path) -> None:
    table.append(0, figures(0))
    assert table.has(0)
    assert not table.has(1)
    with pytest.raises(UserMistake, match="another checkpoint"):
        JobTable(str(tmp_path / "tables" / "rollup"), "another", ["date"]).has(0)


def test_rows_of_a_changed_file_are_not_copied(table: JobTable, tmp_path: Path) -> None:
    root = str(tmp_path / "tables" / "rollup")
    table.append(0, figures(-60))
    table.rewrite(1, figures(0, 10), "minute")
    changed = next(path for path in Path(root).rglob("*.parquet") if len(pq.read_table(path, partitioning=None)) == 2)
    rows = pq.read_table(changed, partitioning=None)
    pq.write_table(rows.set_column(1, "value", [[7, 7]]), changed)

    with pytest.raises(DamagedFile, match=changed.name):
        table.rewrite(2, figures(5), "minute")
    with pytest.raises(DamagedFile, match=changed.name):
        join_files(root)

    assert len(DeltaTable(root).file_uris()) == 2

"""The archive as Spark's tasks read it, while others compact and vacuum it."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from ropewalk.pipeline.archive import compact, vacuum
from ropewalk.pipeline.checked import DamagedFile
from ropewalk.pipeline.tiered import ArchiveTable
from tests.archive_writer import START, Scribe, flip_payload, message

AT_ONCE = timedelta(0)


def archived(root: Path, batches: int = 4, rows: int = 10) -> None:
    scribe = Scribe(root, shards=1)
    for batch in range(batches):
        scribe.archive([message("a", batch * rows + n + 1, second=batch) for n in range(rows)])


def positions(tables: list[pa.Table]) -> list[int]:
    return [position for table in tables for position in table["position"].to_pylist()]


def tend(root: Path) -> None:
    assert compact(str(root)).rows
    assert vacuum(str(root), AT_ONCE)


def test_a_reader_goes_on_in_the_new_files_when_its_own_are_vacuumed(tmp_path: Path) -> None:
    archived(tmp_path)
    reading = ArchiveTable(str(tmp_path)).rows(0, 3, 38)

    begun = next(reading)
    tend(tmp_path)

    assert positions([begun, *reading]) == list(range(3, 38))


def test_a_time_is_found_although_the_files_are_vacuumed_after_the_table_was_opened(tmp_path: Path) -> None:
    archived(tmp_path)
    table = ArchiveTable(str(tmp_path))
    tend(tmp_path)

    assert table.first_since(0, round((START.timestamp() + 2) * 1000)) == 20


def test_a_file_that_is_missing_from_the_table_as_it_is_now_is_an_error(tmp_path: Path) -> None:
    archived(tmp_path)
    lost = min(tmp_path.rglob("*.parquet"), key=lambda path: path.name)
    table = ArchiveTable(str(tmp_path))
    lost.unlink()

    with pytest.raises(FileNotFoundError):
        list(table.rows(0, 0, 40))
    with pytest.raises(FileNotFoundError):
        table.first_since(0, 0)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip_payload, cut, empty])
def test_a_damaged_file_is_an_error_that_names_it_and_none_of_its_rows_is_read(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    archived(tmp_path)
    [damaged] = tmp_path.rglob("query-1-*.parquet")
    damage(damaged)
    reading = ArchiveTable(str(tmp_path)).rows(0, 0, 40)

    assert positions([next(reading)]) == list(range(10))
    with pytest.raises(DamagedFile, match=damaged.name):
        next(reading)
    with pytest.raises(DamagedFile, match=damaged.name):
        ArchiveTable(str(tmp_path)).first_since(0, 0)


@pytest.mark.parametrize("damage", [flip_payload, cut, empty])
def test_a_damaged_file_is_passed_over_where_that_is_asked_for(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    archived(tmp_path)
    [damaged] = tmp_path.rglob("query-1-*.parquet")
    damage(damaged)
    told: list[DamagedFile] = []

    rows = list(ArchiveTable(str(tmp_path), told.append).rows(0, 0, 40))

    assert positions(rows) == [*range(10), *range(20, 40)]
    assert [each.path for each in told] == [str(damaged.relative_to(tmp_path))]

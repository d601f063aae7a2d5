"""Reads of the archive by Spark tasks during compaction and vacuum, and from damaged files."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from ropewalk.pipeline.archive import compact, vacuum
from ropewalk.pipeline.checked import DamagedFile
from ropewalk.pipeline.tiered import ArchiveTable
from tests.archive_writer import START, Scribe, cut_file, empty_file, flip_payload, message

NO_RETENTION = timedelta(0)


def write_archive(root: Path, batches: int = 4, rows: int = 10) -> None:
    scribe = Scribe(root, shards=1)
    for batch in range(batches):
        scribe.archive([message("a", batch * rows + n + 1, second=batch) for n in range(rows)])


def positions(tables: list[pa.Table]) -> list[int]:
    return [position for table in tables for position in table["position"].to_pylist()]


def compact_and_vacuum(root: Path) -> None:
    assert compact(str(root)).rows
    assert vacuum(str(root), NO_RETENTION)


def test_reader_continues_in_compacted_files(tmp_path: Path) -> None:
    write_archive(tmp_path)
    reading = ArchiveTable(str(tmp_path)).rows(0, 3, 38)

    first = next(reading)
    compact_and_vacuum(tmp_path)

    assert positions([first, *reading]) == list(range(3, 38))


def test_first_since_reads_compacted_files_after_a_vacuum(tmp_path: Path) -> None:
    write_archive(tmp_path)
    table = ArchiveTable(str(tmp_path))
    compact_and_vacuum(tmp_path)

    assert table.first_since(0, round((START.timestamp() + 2) * 1000)) == 20


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    write_archive(tmp_path)
    lost = min(tmp_path.rglob("*.parquet"), key=lambda path: path.name)
    table = ArchiveTable(str(tmp_path))
    lost.unlink()

    with pytest.raises(FileNotFoundError):
        list(table.rows(0, 0, 40))
    with pytest.raises(FileNotFoundError):
        table.first_since(0, 0)


@pytest.mark.parametrize("damage", [flip_payload, cut_file, empty_file])
def test_damaged_file_is_named_and_none_of_its_rows_is_read(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    write_archive(tmp_path)
    [damaged] = tmp_path.rglob("query-1-*.parquet")
    damage(damaged)
    reading = ArchiveTable(str(tmp_path)).rows(0, 0, 40)

    assert positions([next(reading)]) == list(range(10))
    with pytest.raises(DamagedFile, match=damaged.name):
        next(reading)
    with pytest.raises(DamagedFile, match=damaged.name):
        ArchiveTable(str(tmp_path)).first_since(0, 0)


@pytest.mark.parametrize("damage", [flip_payload, cut_file, empty_file])
def test_damaged_file_is_skipped_and_reported_if_requested(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    write_archive(tmp_path)
    [damaged] = tmp_path.rglob("query-1-*.parquet")
    damage(damaged)
    reported: list[DamagedFile] = []

    rows = list(ArchiveTable(str(tmp_path), reported.append).rows(0, 0, 40))

    assert positions(rows) == [*range(10), *range(20, 40)]
    assert [each.path for each in reported] == [str(damaged.relative_to(tmp_path))]

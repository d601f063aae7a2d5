"""Checks the files of the archive against its log: present, unchanged, with the rows of their statistics."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from msgspec import Struct

from ropewalk.core.digests import parse_digest
from ropewalk.pipeline.checked import BROKEN, CHANGED, unchanged
from ropewalk.pipeline.tiered import ArchiveFile, archive_files


class FileFault(Struct, frozen=True):
    path: str
    what: str
    readable: bool


def checked_files(table: DeltaTable, root: str, seen: Callable[[int, int], None] = lambda done, total: None) -> list[FileFault]:
    """The damaged files of the table. Calls `seen` with the number of checked files and the total."""
    files = archive_files(table)
    faults: list[FileFault] = []
    for number, file in enumerate(files, 1):
        if fault := _fault(Path(root) / file.path, file):
            faults.append(FileFault(file.path, *fault))
        seen(number, len(files))
    return faults


def _fault(path: Path, file: ArchiveFile) -> tuple[str, bool] | None:
    try:
        if not unchanged(path):
            return CHANGED, False  # some of its pages may be unreadable or wrong
        held = _extent(path)
        size = path.stat().st_size
    except FileNotFoundError:
        return "is missing", False
    except BROKEN as error:
        return f"cannot be read: {error}", False
    told = (file.rows, file.first, file.end - 1)
    if held != told:
        return (
            f"holds {held[0]} rows at positions {held[1]} to {held[2]}; its statistics: {told[0]} at {told[1]} to {told[2]}",
            True,
        )
    return None if size == file.size else (CHANGED, True)


def _extent(path: Path) -> tuple[int, int, int]:
    """Rows, first and last position. All columns are read of a file without a digest: a damaged page shows in no other way."""
    with pq.ParquetFile(path) as file:
        batches = file.iter_batches(columns=["position"] if parse_digest(path.name) else None)
        extremes = [(len(batch), pc.min_max(batch["position"]).as_py()) for batch in batches if len(batch)]
    rows = sum(count for count, _ in extremes)
    firsts = [each["min"] for _, each in extremes if each["min"] is not None]
    lasts = [each["max"] for _, each in extremes if each["max"] is not None]
    return rows, min(firsts, default=0), max(lasts, default=-1)

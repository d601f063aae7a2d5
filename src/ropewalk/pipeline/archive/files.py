"""Whether the files of the archive are what its log says of them: there, unchanged, with the rows of their statistics."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from msgspec import Struct

from ropewalk.pipeline.archive.log import add_actions
from ropewalk.pipeline.checked import BROKEN, CHANGED, unchanged


class FileFault(Struct, frozen=True):
    path: str
    what: str
    readable: bool


def checked_files(table: DeltaTable, root: str, seen: Callable[[int, int], None] = lambda done, total: None) -> list[FileFault]:
    """What is wrong with the files that the table names. `seen` is told how many of how many were looked at."""
    files = add_actions(table)
    names = ("path", "size_bytes", "num_records", "min.position", "max.position")
    rows = list(zip(*(files[name].to_pylist() for name in names), strict=True))
    faults: list[FileFault] = []
    for number, (path, size, records, first, last) in enumerate(rows, 1):
        if fault := _fault(Path(root) / path, size, (records, first, last)):
            faults.append(FileFault(path, *fault))
        seen(number, len(rows))
    return faults


def _fault(path: Path, size: int, told: tuple[int, int, int]) -> tuple[str, bool] | None:
    if not path.exists():
        return "is missing", False
    try:
        positions = pq.read_table(path, columns=["position"], partitioning=None)["position"]
    except BROKEN as error:
        return f"cannot be read: {error}", False
    both = pc.min_max(positions).as_py()
    held = (len(positions), both["min"], both["max"])
    if held != told:
        return (
            f"holds {held[0]} rows at positions {held[1]} to {held[2]}; its statistics say {told[0]} at {told[1]} to {told[2]}",
            True,
        )
    if path.stat().st_size != size or not unchanged(path):
        return CHANGED, True
    return None

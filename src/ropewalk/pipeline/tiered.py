"""The archive as the source's cold end: rows of a shard by exact positions, out of the files that its table names.

The directory is never listed: it may hold files of failed attempts and of compactions that were not committed.
"""

import datetime
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct


class ArchiveFile(Struct, frozen=True):
    """One file of the table; positions [first, end) of its shard lie in it, not always densely."""

    path: str
    shard: int
    date: str
    first: int
    end: int


class ArchiveTable:
    """The table as it is when this is made."""

    def __init__(self, root: str) -> None:
        # Loaded here because most readers of the journal never come here.
        from deltalake import DeltaTable

        self._root = root
        self._files = _files(DeltaTable(root)) if DeltaTable.is_deltatable(root) else []

    def first(self, shard: int) -> int | None:
        """The oldest position of a shard; None if there is nothing of it."""
        return min((file.first for file in self._files if file.shard == shard), default=None)

    def rows(self, shard: int, first: int, end: int) -> Iterator[pa.Table]:
        """What the archive has of [first, end), in order of position."""
        wanted = [file for file in self._files if file.shard == shard and file.first < end and file.end > first]
        for group in _overlapping(wanted):
            tables = [self._read(file, first, end) for file in group]
            yield pa.concat_tables(tables).sort_by("position")

    def first_since(self, shard: int, timestamp: int) -> int | None:
        """The first position that was registered at or after `timestamp` (milliseconds)."""
        moment = datetime.datetime.fromtimestamp(timestamp / 1000, datetime.UTC)
        later = [file for file in self._files if file.shard == shard and file.date >= moment.date().isoformat()]
        firsts = (pc.min(self._since(file, moment).column("position")).as_py() for file in later)
        return min((first for first in firsts if first is not None), default=None)

    def _read(self, file: ArchiveFile, first: int, end: int) -> pa.Table:
        inside = (pc.field("position") >= first) & (pc.field("position") < end)
        return pq.read_table(Path(self._root) / file.path, filters=inside, partitioning=None)

    def _since(self, file: ArchiveFile, moment: datetime.datetime) -> pa.Table:
        path = Path(self._root) / file.path
        return pq.read_table(path, columns=["position"], filters=pc.field("timestamp") >= moment, partitioning=None)


def _files(table: object) -> list[ArchiveFile]:
    actions: list[Mapping[str, object]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()  # type: ignore[attr-defined]
    return [
        ArchiveFile(
            str(action["path"]),
            int(str(action["partition.shard"])),
            str(action["partition.date"]),
            int(str(action["min.position"])),
            int(str(action["max.position"])) + 1,
        )
        for action in actions
    ]


def _overlapping(files: list[ArchiveFile]) -> Iterator[list[ArchiveFile]]:
    """Files whose positions interleave have to be read together; all others one after another."""
    group: list[ArchiveFile] = []
    for file in sorted(files, key=lambda file: file.first):
        if group and file.first >= max(known.end for known in group):
            yield group
            group = []
        group.append(file)
    if group:
        yield group

"""Compaction: small files of one date and shard are joined, with the same rows in the same order; large ones are left alone.

Invariant: one commit removes the old and adds the new, so that every reader sees all rows once, before and after. A
file that is not as it was written is left as it is: joined with others it would have a right digest again.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable
from msgspec import Struct

from ropewalk.model.journal import GENERATION_SIZE
from ropewalk.pipeline.archive.layout import write_file
from ropewalk.pipeline.archive.log import add_actions, opened, replace
from ropewalk.pipeline.checked import DamagedFile, read_file
from ropewalk.protocol.journal_schema import SCHEMA

MAX_BYTES = 512 << 20
"""Compressed bytes that go into one file: a shard's day is held in memory while it is sorted."""

WORTH = 2
"""A file is rewritten only together with later ones that have half its rows in all. So it grows by half at the least each time,
and how often a row is rewritten grows with the logarithm of the table, not with the number of rounds."""


class Compaction(Struct, frozen=True):
    """The result: `rows` is the number of rewritten rows, `damaged` names the skipped files and the fault of each."""

    files_before: int = 0
    files_after: int = 0
    rows: int = 0
    damaged: tuple[str, ...] = ()


class _File(NamedTuple):
    date: str
    shard: int
    generation: int
    position: int
    path: str
    size: int
    rows: int

    @property
    def part(self) -> tuple[str, int, int]:
        return self.date, self.shard, self.generation


def compact(root: str, before: str = "", min_files: int = 2, max_bytes: int = MAX_BYTES) -> Compaction:
    """Join small files of each shard's day before the date `before` ("" takes all, today's too), at least `min_files` each.

    Appending goes on meanwhile. Raises CommitFailedError if another compaction of the same table runs at once.
    """
    table = opened(root)
    if table is None:
        return Compaction()
    files = [file for file in _files(table) if not before or file.date < before]
    groups = [
        group
        for _, part in groupby(files, key=lambda file: file.part)
        for group in _worth_joining(list(part), max_bytes)
        if len(group) >= min_files
    ]
    done = [_joined(table, group, min_files) for group in groups]
    return Compaction(
        sum(each.files_before for each in done),
        sum(each.files_after for each in done),
        sum(each.rows for each in done),
        tuple(fault for each in done for fault in each.damaged),
    )


def _files(table: DeltaTable) -> list[_File]:
    """By date, shard, generation and position. A file with rows of two generations, as older versions wrote, is left alone."""
    files = add_actions(table)
    names = ("partition.date", "partition.shard", "min.position", "max.position", "path", "size_bytes", "num_records")
    rows = zip(*(files[name].to_pylist() for name in names), strict=True)
    return sorted(
        _File(date, shard, first // GENERATION_SIZE, first, path, size, count)
        for date, shard, first, last, path, size, count in rows
        if first // GENERATION_SIZE == last // GENERATION_SIZE
    )


def _worth_joining(files: Sequence[_File], max_bytes: int) -> Iterator[list[_File]]:
    """Neighbours that fit into one file, without those at the beginning that are large against what follows."""
    group: list[_File] = []
    for file in files:
        if group and sum(each.size for each in group) + file.size > max_bytes:
            yield _without_large(group)
            group = []
        group.append(file)
    yield _without_large(group)


def _without_large(group: list[_File]) -> list[_File]:
    following = sum(file.rows for file in group)
    for start, file in enumerate(group):
        following -= file.rows
        if file.rows <= WORTH * following:
            return group[start:]
    return []


def _joined(table: DeltaTable, group: Sequence[_File], min_files: int) -> Compaction:
    """One file for all of the group; for those before and behind a damaged one if there are enough of them."""
    root = Path(table.table_uri.removeprefix("file://"))
    runs: list[list[tuple[_File, pa.Table]]] = [[]]
    damaged: list[str] = []
    for file in group:
        try:
            runs[-1].append((file, _rows(root, file)))
        except DamagedFile as error:
            damaged.append(f"{error.path} {error.what}")
            runs.append([])
    rewritten = [run for run in runs if len(run) >= min_files]
    rows = sum(_rewrite(table, root, run) for run in rewritten)
    return Compaction(sum(map(len, rewritten)), len(rewritten), rows, tuple(damaged))


def _rows(root: Path, file: _File) -> pa.Table:
    try:
        rows = read_file(root, file.path, SCHEMA.names)
    except FileNotFoundError:
        raise DamagedFile(file.path, "is missing") from None
    if len(rows) != file.rows:
        raise DamagedFile(file.path, f"holds {len(rows)} rows; its statistics: {file.rows}")
    return rows


def _rewrite(table: DeltaTable, root: Path, run: Sequence[tuple[_File, pa.Table]]) -> int:
    date, shard, _ = run[0][0].part
    rows = pa.concat_tables([rows for _, rows in run]).combine_chunks()  # sorting many chunks takes three times as long
    new = write_file(root, date, shard, f"compact-{uuid4().hex[:12]}", rows)
    replace(table, [file.path for file, _ in run], date, shard, new)
    table.update_incremental()
    return len(rows)

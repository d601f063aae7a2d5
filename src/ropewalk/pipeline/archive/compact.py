"""Compaction: the many small files of one date and shard become one large one, with the same rows in the same order.

The rule it keeps: one commit removes the old and adds the new, so that every reader sees all rows once, before and after.
"""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from msgspec import Struct

from ropewalk.pipeline.archive.layout import BODY, write_file
from ropewalk.pipeline.archive.log import add_actions, opened, replace

MAX_BYTES = 512 << 20
"""Compressed bytes that go into one file: a shard's day is held in memory while it is sorted."""


class Compaction(Struct, frozen=True):
    """What was done."""

    files_before: int = 0
    files_after: int = 0
    rows: int = 0


def compact(root: str, before: str = "", min_files: int = 2, max_bytes: int = MAX_BYTES) -> Compaction:
    """Compact every shard's day before the date `before` ("" takes all, today's too) that has at least `min_files` files.

    Appending goes on meanwhile. Raises CommitFailedError if another compaction of the same table runs at once.
    """
    table = opened(root)
    if table is None:
        return Compaction()
    done = [_rewrite(table, date, shard, old) for date, shard, old in _crowded(table, before, min_files, max_bytes)]
    return Compaction(sum(each.files_before for each in done), len(done), sum(each.rows for each in done))


def _crowded(table: DeltaTable, before: str, min_files: int, max_bytes: int) -> Iterator[tuple[str, int, list[str]]]:
    """Groups of files that fit together, in order of the positions they hold."""
    columns = ["partition.date", "partition.shard", "min.position", "path", "size_bytes"]
    files = add_actions(table).select(columns).sort_by([(name, "ascending") for name in columns[:3]])
    group: list[str] = []
    size, key = 0, ("", -1)
    for date, shard, _, path, bytes_ in zip(*(files[name].to_pylist() for name in columns), strict=True):
        if (date, shard) != key or size + bytes_ > max_bytes:
            if len(group) >= min_files:
                yield *key, group
            group, size, key = [], 0, (date, shard)
        if not before or date < before:
            group.append(path)
            size += bytes_
    if len(group) >= min_files:
        yield *key, group


def _rewrite(table: DeltaTable, date: str, shard: int, old: list[str]) -> Compaction:
    root = Path(table.table_uri.removeprefix("file://"))
    rows = pa.concat_tables([pq.ParquetFile(root / path).read(columns=BODY.names) for path in old])
    new = write_file(root, date, shard, f"compact-{uuid4().hex[:12]}", rows)
    replace(table, old, date, shard, new)
    table.update_incremental()
    return Compaction(len(old), 1, len(rows))

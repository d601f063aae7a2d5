"""Helpers of the tests of the archive."""

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from ropewalk.model.messages import Registered
from ropewalk.pipeline.archive.layout import Written, partitioned, write_file
from tests.archive_writer import Scribe, message


def messages(stream: str, first: int, last: int, second: float = 0.0) -> list[Registered]:
    """Messages of a stream with offsets `first` to `last`."""
    return [message(stream, offset, second=second) for offset in range(first, last + 1)]


def read_rows(scribe: Scribe) -> pa.Table:
    """All rows of the archive, by position."""
    return DeltaTable(scribe.root).to_pyarrow_table().sort_by("position")


def write_files(scribe: Scribe, name: str, rows: pa.Table) -> list[Written]:
    """Writes the rows into files without committing them."""
    return [write_file(scribe.root, date, shard, name, part) for date, shard, part in partitioned(rows)]


def batch_file(scribe: Scribe, batch: int) -> Path:
    """The file of a batch of one shard and day."""
    [path] = scribe.root.rglob(f"query-{batch}-*.parquet")
    return path

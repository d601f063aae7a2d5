"""Archives rows again that the table has lost, for example because another tool deleted them, and that the journal still has.

Invariant: all rows are added in one commit, and it fails if another append or restore was committed since the missing positions
were determined. So no row is added twice.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable

from ropewalk.model.errors import Unavailable
from ropewalk.pipeline.archive.coverage import Missing, missing_positions
from ropewalk.pipeline.archive.layout import Written, partitioned, write_file
from ropewalk.pipeline.archive.log import RESTORING, next_restore, opened, restore
from ropewalk.pipeline.checked import read_file
from ropewalk.pipeline.journal_client import JournalClient
from ropewalk.pipeline.offsets import Spans
from ropewalk.pipeline.tiered import archive_files


def lost_rows(table: DeltaTable, root: str, spans: Spans) -> list[Missing]:
    """Positions that the archive must hold and lacks, and that the journal has. Each range lies within one of the `spans`."""
    missing = missing_positions(table, root)
    own = sorted((shard, span.first, span.end) for shard, listed in spans.items() for span in listed)
    return [
        Missing(shard, max(each.first, first), min(each.end, end))
        for shard, first, end in own
        for each in missing
        if each.shard == shard and each.first < end and each.end > first
    ]


def count_rows(ranges: Sequence[Missing]) -> int:
    return sum(each.end - each.first for each in ranges)


def restore_rows(client: JournalClient, root: str) -> int:
    """Returns the number of added rows.

    Raises DamagedFile or FileNotFoundError for a file whose positions cannot be read: it may hold rows that seem to be lost.
    """
    table = opened(root)
    if table is None:
        return 0
    for file in archive_files(table):
        if not file.dense:
            read_file(root, file.path, columns=["position"])
    spans = client.spans()
    lost = lost_rows(table, root, spans)
    name = f"{RESTORING}-{next_restore(table)}"
    written: list[Written] = []
    for number, rows in enumerate(_rows(client, lost, spans)):
        file_name = f"{name}-{number}-0-{uuid4().hex[:8]}"
        written += [write_file(Path(root), date, shard, file_name, part) for date, shard, part in partitioned(rows)]
    if written:
        restore(table, written)
    return count_rows(lost)


def _rows(client: JournalClient, lost: Sequence[Missing], spans: Spans) -> Iterator[pa.Table]:
    """The rows at these positions, in tables of bounded size."""
    for shard, listed in spans.items():
        for span in listed:
            ranges = [each for each in lost if each.shard == shard and span.first <= each.first < span.end]
            while ranges:
                rows = client.read(shard, ranges[0].first, ranges[-1].end)
                if not len(rows):
                    raise Unavailable(f"the journal lists position {ranges[0].first} of shard {shard} but returns no row")
                begin = ranges[0].first
                end = begin + len(rows)
                found = [rows.slice(each.first - begin, min(each.end, end) - each.first) for each in ranges if each.first < end]
                table = pa.concat_tables(found)
                yield table.append_column("shard", pa.array([shard] * len(table), pa.int32()))
                ranges = [Missing(shard, max(each.first, end), each.end) for each in ranges if each.end > end]

"""When rows were registered, asked of the journal and, below it, of the archive; a little more is read each time than is asked.

A position that nobody has any more counts as registered with the next row that is there.
"""

from collections.abc import Sequence
from functools import cached_property

import pyarrow as pa

from ropewalk.model.journal import ShardSpan
from ropewalk.pipeline.offsets import Spans
from ropewalk.pipeline.tiered import ArchiveTable
from ropewalk.pipeline.wire import JournalRefused, Wire

WINDOW_ROWS = 4096
WINDOW_BYTES = 1 << 16
LAST = 1 << 62
"""Behind all rows that are there: lost by damage, or never written."""


class RowTimes:
    """As the journal is while one batch is planned."""

    def __init__(self, wire: Wire, archive: str, spans: Spans) -> None:
        self._wire = wire
        self._root = archive
        self._spans = spans
        self._known: dict[tuple[int, int], int] = {}

    def at(self, shard: int, position: int) -> int:
        """Microseconds of the row at a position of a shard."""
        if (shard, position) not in self._known:
            self._known[shard, position] = self._asked(shard, position)
        return self._known[shard, position]

    def _asked(self, shard: int, position: int) -> int:
        span = _reaching(self._spans[shard], position)
        if position < (LAST if span is None else span.first):
            for table in self._archived(shard, position, LAST if span is None else span.first):
                return self._note(shard, table)
        return LAST if span is None else self._registered(shard, max(position, span.first), span.end)

    def _archived(self, shard: int, first: int, end: int) -> list[pa.Table]:
        """The beginning of what the archive has of a range, if anything."""
        if self._archive is None:
            return []
        for stop in (min(first + WINDOW_ROWS, end), end):
            for table in self._archive.rows(shard, first, stop, ["position", "timestamp"]):
                return [table]
        return []

    def _registered(self, shard: int, first: int, end: int) -> int:
        try:
            table = self._wire.read(shard, first, min(first + WINDOW_ROWS, end), WINDOW_BYTES)
        except JournalRefused:  # retention has overtaken us: it was among the oldest
            return 0
        return self._note(shard, table) if table.num_rows else 0

    def _note(self, shard: int, table: pa.Table) -> int:
        """Returns the time of the first row."""
        positions = table.column("position").to_pylist()
        times = table.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
        self._known |= {(shard, position): time for position, time in zip(positions, times, strict=True)}
        first: int = times[0]
        return first

    @cached_property
    def _archive(self) -> ArchiveTable | None:
        return ArchiveTable(self._root) if self._root else None


def _reaching(own: Sequence[ShardSpan], position: int) -> ShardSpan | None:
    """The first span that has this row or later ones."""
    return next((span for span in own if position < span.end and span.first < span.end), None)

"""Partitions of the archive."""

import pyarrow as pa

from ropewalk.pipeline.archive.layout import TIMELESS, partitioned
from tests.archive_writer import Scribe
from tests.unit.pipeline.archives import messages


def test_row_without_a_time_is_stored_with_its_neighbours(scribe: Scribe) -> None:
    rows = scribe.rows([*messages("a", 1, 2), *messages("a", 3, 3, second=3600)])
    times = rows["timestamp"].to_pylist()
    at = rows.schema.get_field_index("timestamp")
    gap = rows.set_column(at, rows.schema.field("timestamp"), pa.array([None, *times[1:]], rows.schema.field("timestamp").type))
    assert {(date, len(part)) for date, _, part in partitioned(gap)} == {("2026-03-01", 2), ("2026-03-02", 1)}
    alone = gap.slice(0, 1)
    assert [(date, len(part)) for date, _, part in partitioned(alone)] == [(TIMELESS, 1)]

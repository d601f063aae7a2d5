"""What a Parquet file says of its row groups: which streams, epochs, offsets and times each of them holds.

Invariant: a row group is left out only where its statistics prove that the stream is not in it.
"""

from bisect import bisect_left
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import pyarrow.parquet as pq

BEYOND = "\U0010ffff"  # no stream's name is above it, so a row group without statistics is looked at always


class RowGroup(NamedTuple):
    """One row group. `one_stream` and `one_epoch`: all of its rows have the first of the two, so statistics say everything."""

    number: int
    rows: int
    first_stream: str
    last_stream: str
    one_stream: bool
    epoch: str | None
    first_offset: int
    last_offset: int
    first_time: float
    last_time: float


class Footer:
    """Row groups in the file's order, which is that of their streams."""

    def __init__(self, metadata: pq.FileMetaData) -> None:
        self.metadata = metadata
        names = {metadata.schema.column(index).name: index for index in range(metadata.num_columns)}
        self._groups = [_group(metadata.row_group(number), number, names) for number in range(metadata.num_row_groups)]
        self._lasts = [group.last_stream for group in self._groups]

    def of(self, stream: str) -> Iterator[RowGroup]:
        """Those that may hold rows of the stream."""
        for group in self._groups[bisect_left(self._lasts, stream) :]:
            if group.first_stream > stream:
                return
            yield group


class _Range(NamedTuple):
    low: object
    high: object
    whole: bool  # no row is without a value


def _group(found: pq.RowGroupMetaData, number: int, names: dict[str, int]) -> RowGroup:
    streams, epochs = _range(found, names["stream"]), _range(found, names["epoch"])
    offsets, times = _range(found, names["offset"]), _range(found, names["timestamp"])
    one_stream = streams is not None and streams.whole and streams.low == streams.high
    one_epoch = epochs is not None and epochs.whole and epochs.low == epochs.high
    return RowGroup(
        number,
        found.num_rows,
        str(streams.low) if streams else "",
        str(streams.high) if streams else BEYOND,
        one_stream,
        str(epochs.low) if epochs and one_epoch else None,
        _whole_number(offsets.low) if offsets else 0,
        _whole_number(offsets.high) if offsets else 2**63 - 1,
        _seconds(times.low) if times else 0.0,
        _seconds(times.high) if times else float("inf"),
    )


def _range(group: pq.RowGroupMetaData, column: int) -> _Range | None:
    statistics = group.column(column).statistics
    if statistics is None or not statistics.has_min_max:
        return None
    return _Range(statistics.min, statistics.max, statistics.has_null_count and statistics.null_count == 0)


def _whole_number(value: object) -> int:
    assert isinstance(value, int)
    return value


def _seconds(value: object) -> float:
    assert isinstance(value, datetime)
    return value.timestamp()

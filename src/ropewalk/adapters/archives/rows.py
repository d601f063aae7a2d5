"""Rows of the archive's and the journal's columns as registered messages."""

import pyarrow as pa
import pyarrow.compute as pc

from ropewalk.model.messages import Registered

KEYS = ["stream", "epoch", "offset", "timestamp"]
COLUMNS = [*KEYS, "value", "exclude_socket", "broadcast_type"]

FAR_FUTURE = 9e12
"""Seconds. Later times are no 64-bit number of microseconds."""


def kept_time(moment: float) -> float:
    """The moment as the columns keep it, to the microsecond: only then can it be compared with what is kept."""
    return round(min(moment, FAR_FUTURE) * 1e6) / 1e6


def chosen(rows: pa.Table, stream: str, epoch: str, first: int, last: int, since: float) -> pa.Table:
    """Publications of one epoch of the stream in this range. What else happens to a stream has no epoch."""
    offsets = rows["offset"]
    mask = pc.and_(pc.equal(rows["stream"], stream), pc.equal(rows["epoch"], epoch))
    mask = pc.and_(mask, pc.and_(pc.greater_equal(offsets, first), pc.less_equal(offsets, last)))
    if since > 0:
        mask = pc.and_(mask, pc.greater_equal(microseconds(rows), round(since * 1e6)))
    return rows.filter(mask)


def microseconds(rows: pa.Table) -> pa.ChunkedArray:
    return rows["timestamp"].cast(pa.int64())


def registered(rows: pa.Table) -> list[Registered]:
    columns = [rows[name].to_pylist() for name in ("stream", "value")]
    columns += [microseconds(rows).to_pylist()]
    columns += [rows[name].to_pylist() for name in ("epoch", "offset", "exclude_socket", "broadcast_type")]
    return [
        Registered(stream, value or b"", time / 1e6, epoch, offset, exclude or "", kind or "")
        for stream, value, time, epoch, offset, exclude, kind in zip(*columns, strict=True)
    ]

"""Rows of the archive's and the journal's columns as registered messages."""

import pyarrow as pa
import pyarrow.compute as pc

from ropewalk.model.messages import Registered

KEYS = ["stream", "epoch", "offset", "timestamp"]
COLUMNS = [*KEYS, "value", "exclude_socket", "broadcast_type"]


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
    columns = [microseconds(rows).to_pylist() if name == "timestamp" else rows[name].to_pylist() for name in COLUMNS]
    return [
        Registered(stream, value or b"", time / 1e6, epoch, offset, exclude or "", kind or "")
        for stream, epoch, offset, time, value, exclude, kind in zip(*columns, strict=True)
    ]

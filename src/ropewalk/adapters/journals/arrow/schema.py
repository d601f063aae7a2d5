"""The journal's columns, and the conversion between rows and record batches.

Invariant: a missing value is null, and becomes the row's default again. Types are plain and nullable, because Spark compares
schemas exactly.
"""

from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pyarrow as pa

from ropewalk.model.journal import Row, RowKind

STRING = pa.string()
BINARY = pa.binary()
INT64 = pa.int64()
TIME = pa.timestamp("us", tz="UTC")

SCHEMA = pa.schema(
    [
        ("position", INT64),
        ("event", STRING),
        ("stream", STRING),
        ("epoch", STRING),
        ("offset", INT64),
        ("timestamp", TIME),
        ("key", STRING),
        ("value", BINARY),
        ("uid", STRING),
        ("exclude_socket", STRING),
        ("broadcast_type", STRING),
        ("sid", STRING),
        ("detail", STRING),
        ("producer", STRING),
        ("sequence", INT64),
    ]
)

MICROSECONDS = 1_000_000
KINDS = {str(kind): kind for kind in RowKind}


def encode(rows: Sequence[Row], first: int) -> tuple[Any, int]:
    """The record batch of these rows, the first of them at position `first`, and the newest time in it in microseconds."""
    times = [round(row.timestamp * MICROSECONDS) for row in rows]
    streams = [row.stream for row in rows]
    keys = [row.key for row in rows]
    stream_column = _texts(streams)
    published = [row.kind is RowKind.PUBLISH for row in rows]
    columns = [
        _numbers(range(first, first + len(rows)), INT64),
        _events(rows, published),
        stream_column,
        _texts([row.epoch for row in rows]),
        _places([row.offset for row in rows]),
        _numbers(times, TIME),
        # For publications the key is the stream's name, most of the time: one column then serves as both.
        stream_column if keys == streams else pa.array(keys, STRING),
        _values(rows, published),
        _texts([row.uid for row in rows]),
        _texts([row.exclude_socket for row in rows]),
        _texts([row.broadcast_type for row in rows]),
        _texts([row.sid for row in rows]),
        _texts([row.detail for row in rows]),
        *_produced(rows),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA), max(times)


def decode(batch: Any, oldest: int) -> Iterator[Row]:
    """The rows of a batch at or after `oldest` (microseconds), as they were written, to the microsecond of their time."""
    columns = [column.to_pylist() for column in batch.columns if column.type != TIME]
    times = batch.column("timestamp").cast(INT64).to_pylist()
    for time, cells in zip(times, zip(*columns, strict=True), strict=True):
        if time < oldest:
            continue
        _, event, stream, epoch, offset, key, value, uid, exclude, kind, sid, detail, producer, sequence = cells
        if (known := KINDS.get(event)) is None:
            continue  # of a newer version
        yield Row(
            known,
            key or "",
            time / MICROSECONDS,
            stream or "",
            epoch or "",
            offset or 0,
            value or b"",
            uid or "",
            exclude or "",
            kind or "",
            sid or "",
            detail or "",
            producer or "",
            sequence or 0,
        )


def _numbers(numbers: Sequence[int], kind: Any) -> Any:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(array("q", numbers))])


def _places(offsets: list[int]) -> Any:
    if all(offsets):
        return _numbers(offsets, INT64)
    return pa.array([offset or None for offset in offsets], INT64)


def _texts(texts: list[str]) -> Any:
    if all(texts):
        return pa.array(texts, STRING)
    if not any(texts):
        return _absent(len(texts), STRING)
    return pa.array([text or None for text in texts], STRING)


def _events(rows: Sequence[Row], published: list[bool]) -> Any:
    if len(rows) == 1 and published[0]:
        return _ONE_PUBLISHED
    return pa.array([row.kind for row in rows], STRING)


def _values(rows: Sequence[Row], published: list[bool]) -> Any:
    """A publication has a value, even an empty one; what happened to sessions has none."""
    if all(published):
        return pa.array([row.value for row in rows], BINARY)
    if not any(published):
        return _absent(len(rows), BINARY)
    return pa.array([row.value if row.kind is RowKind.PUBLISH else None for row in rows], BINARY)


def _produced(rows: Sequence[Row]) -> tuple[Any, Any]:
    producers = [row.producer for row in rows]
    if not any(producers):
        return _absent(len(rows), STRING), _absent(len(rows), INT64)
    return _texts(producers), pa.array([row.sequence if row.producer else None for row in rows], INT64)


def _absent(rows: int, kind: Any) -> Any:
    return _few_absent(rows, kind) if rows <= FEW else pa.nulls(rows, kind)


@cache
def _few_absent(rows: int, kind: Any) -> Any:
    return pa.nulls(rows, kind)


FEW = 16
"""Batches so small are common and their columns of nulls are kept; there are not many of them."""

_ONE_PUBLISHED = pa.array([RowKind.PUBLISH.value], STRING)

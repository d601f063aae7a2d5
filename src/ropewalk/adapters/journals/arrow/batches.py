"""Record batches: converts rows to Arrow and back, and frames them as the messages of a segment.

Invariant: a missing value is null, and is decoded as the default of the field. A damaged or incomplete message is never used:
each has a small record with a checksum, in the padding that Arrow allows after the metadata of a message. So every Arrow reader
sees a plain IPC stream.

    FF FF FF FF | size of metadata + record | metadata | record | body
"""

import re
import struct
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import compress
from typing import Any
from zlib import crc32

import msgspec
import pyarrow as pa
from msgspec import Struct, structs

from ropewalk.model.journal import Row, RowKind
from ropewalk.protocol.journal_schema import BINARY, INT64, SCHEMA, STRING, TIME

# --- rows and record batches -----------------------------------------------------------------------------------------

MICROSECONDS = 1_000_000
KINDS = {str(kind): kind for kind in RowKind}

_FIELDS = [field for field in msgspec.structs.fields(Row) if field.name not in ("kind", "timestamp")]
_NAMES = tuple(SCHEMA.names)


def encode(rows: Sequence[Row], first: int) -> tuple[Any, int]:
    """The record batch of these rows, which begin at position `first`, and its newest time in microseconds."""
    times = [round(row.timestamp * MICROSECONDS) for row in rows]
    streams = [row.stream for row in rows]
    keys = [row.key for row in rows]
    stream_column = _texts(streams)
    producer_column, sequence_column = _produced(rows)
    published = [row.kind is RowKind.PUBLISH for row in rows]
    columns = {
        "position": _numbers(range(first, first + len(rows)), INT64),
        "event": _events(rows, published),
        "stream": stream_column,
        "epoch": _texts([row.epoch for row in rows]),
        "offset": _places([row.offset for row in rows]),
        "timestamp": _numbers(times, TIME),
        # The key of a publication is usually the name of its stream: then one column serves as both.
        "key": stream_column if keys == streams else pa.array(keys, STRING),
        "value": _values(rows, published),
        "uid": _texts([row.uid for row in rows]),
        "exclude_socket": _texts([row.exclude_socket for row in rows]),
        "broadcast_type": _texts([row.broadcast_type for row in rows]),
        "sid": _texts([row.sid for row in rows]),
        "detail": _texts([row.detail for row in rows]),
        "producer": producer_column,
        "sequence": sequence_column,
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in _NAMES], schema=SCHEMA), max(times)


def decode(batch: Any, oldest: int) -> Iterator[Row]:
    """The rows of a batch at or after `oldest` (microseconds). Times are rounded to microseconds."""
    events = batch.column("event").to_pylist()
    times = batch.column("timestamp").cast(INT64).to_pylist()
    # Unknown kinds are from a newer version.
    wanted = [time >= oldest and event in KINDS for time, event in zip(times, events, strict=True)]
    columns = [_cells(batch.column(field.name), field.default) for field in _FIELDS]
    kinds = map(KINDS.get, compress(events, wanted))
    seconds = [time / MICROSECONDS for time in compress(times, wanted)]
    keys, *others = [compress(column, wanted) for column in columns]
    return map(Row, kinds, keys, seconds, *others)


def _cells(column: Any, default: Any) -> list[Any]:
    missing = "" if default is msgspec.NODEFAULT else default
    if column.null_count == len(column):
        return [missing] * len(column)
    cells: list[Any] = column.to_pylist()
    return [missing if cell is None else cell for cell in cells] if column.null_count else cells


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
    """Publications have a value, even an empty one; session rows have none."""
    if all(published):
        return pa.array([row.value for row in rows], BINARY)
    if not any(published):
        return _absent(len(rows), BINARY)
    return pa.array([row.value if row.kind is RowKind.PUBLISH else None for row in rows], BINARY)


def _produced(rows: Sequence[Row]) -> tuple[Any, Any]:
    """Sequences begin at 0, so they are null only without a producer."""
    producers = [row.producer for row in rows]
    if not any(producers):
        return _absent(len(rows), STRING), _absent(len(rows), INT64)
    return _texts(producers), pa.array([row.sequence if row.producer else None for row in rows], INT64)


def _absent(rows: int, kind: Any) -> Any:
    return _cached_nulls(rows, kind) if rows <= SMALL_BATCH_ROWS else pa.nulls(rows, kind)


@cache
def _cached_nulls(rows: int, kind: Any) -> Any:
    return pa.nulls(rows, kind)


SMALL_BATCH_ROWS = 16
"""Small batches are common, so their columns of nulls are cached."""

_ONE_PUBLISHED = pa.array([RowKind.PUBLISH.value], STRING)


# --- messages --------------------------------------------------------------------------------------------------------

HEAD = struct.Struct("<Ii")
RECORD = struct.Struct("<4sIQQqIIII")  # magic, length, first, group, newest, rows, members, shard, checksum
UNCHECKED = RECORD.size - 4
"""Bytes of a record before its checksum."""

CONTINUATION = 0xFFFFFFFF
END_OF_STREAM = HEAD.pack(CONTINUATION, 0)
OPENING = b"RwO1"
BATCH = b"RwB1"
MAGICS = (OPENING, BATCH)
MAX_METADATA_BYTES = 1 << 20

_BEGINNING = re.compile(rb"\xff(?=\xff{3}..[\x00-\x10]\x00)", re.DOTALL)
"""The beginning of a message: the continuation mark and a plausible metadata size."""


class Frame(Struct, frozen=True, gc=False):
    """The record of one message.

    Attributes:
        group: its group commit; 0 in a message rewritten after the group was complete.
        newest: the latest time, in microseconds.
        members: the number of messages in the group; 0 in a rewritten message.
    """

    magic: bytes
    length: int
    first: int
    group: int
    newest: int
    rows: int
    members: int
    shard: int


def frame_batch(batch: Any, shard: int, first: int, newest: int, group: int = 0, members: int = 0) -> bytes:
    message = batch.serialize()
    return _frame(message, Frame(BATCH, len(message) + RECORD.size, first, group, newest, batch.num_rows, members, shard))


def frame_opening(shard: int, epoch: str, first: int) -> bytes:
    """The header of a segment: the schema, the shard and the epoch."""
    schema = SCHEMA.with_metadata({"ropewalk.shard": str(shard), "ropewalk.epoch": epoch})
    message = schema.serialize()
    return _frame(message, Frame(OPENING, len(message) + RECORD.size, first, 0, 0, 0, 0, shard))


def _frame(message: Any, frame: Frame) -> bytes:
    view = memoryview(message)
    _, metadata = HEAD.unpack_from(view)
    body_at = HEAD.size + metadata
    head = HEAD.pack(CONTINUATION, metadata + RECORD.size)
    record = RECORD.pack(*structs.astuple(frame), 0)[:UNCHECKED]
    before = b"".join((head, view[HEAD.size : body_at], record))
    checksum = crc32(view[body_at:], crc32(before))
    return b"".join((before, checksum.to_bytes(4, "little"), view[body_at:]))


def frame_at(data: memoryview, at: int) -> Frame | None:
    """The message at `at`; None if there is none, or its checksum does not match."""
    if at + HEAD.size > len(data):
        return None
    continuation, metadata = HEAD.unpack_from(data, at)
    if continuation != CONTINUATION or not RECORD.size <= metadata <= MAX_METADATA_BYTES:
        return None
    body_at = at + HEAD.size + metadata
    if body_at > len(data):
        return None
    magic, length, first, group, newest, rows, members, shard, checksum = RECORD.unpack_from(data, body_at - RECORD.size)
    end = at + length
    if magic not in MAGICS or end > len(data) or end < body_at:
        return None
    if crc32(data[body_at:end], crc32(data[at : body_at - 4])) != checksum:
        return None
    return Frame(magic, length, first, group, newest, rows, members, shard)


def frames_after(data: memoryview, at: int) -> Iterator[tuple[int, Frame]]:
    """Valid messages at any offset from `at` on, with their offsets: resumes after damaged bytes.

    Text is never mistaken for a message: UTF-8 has no byte FF.
    """
    while (mark := _BEGINNING.search(data, at)) is not None:
        place = mark.start()
        del mark  # keeps the file's memory alive
        frame = frame_at(data, place)
        if frame is not None:
            yield place, frame
        at = place + 1

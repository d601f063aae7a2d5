"""A staged body: an Arrow IPC stream of rows to publish, validated as a whole before any row is used.

Invariant: a decoded body takes no more memory than its own size. So columns are plain and not compressed.
"""

import struct
from typing import Any

import pyarrow as pa

from ropewalk.core.transactions import check_name
from ropewalk.model.errors import BadRequest, MalformedPublication
from ropewalk.model.journal import COLUMNS as JOURNAL_COLUMNS
from ropewalk.model.journal import ColumnType
from ropewalk.model.messages import Publication
from ropewalk.protocol.publications import PublicationLimits, check_stream, check_type, check_uid, encode_payload

TEXT = (pa.string(), pa.large_string())
BYTES = (pa.binary(), pa.large_binary())

_ACCEPTED = {ColumnType.TEXT: TEXT, ColumnType.BYTES: BYTES + TEXT, ColumnType.NUMBER: (pa.int64(),)}

COLUMNS = {column.name: _ACCEPTED[column.type] for column in JOURNAL_COLUMNS if column.sent}
"""The journal's columns that a publication has, with the accepted types. `producer` and `sequence` number a row: the server
skips rows up to the producer's last sequence."""

REQUIRED = ("stream", "value")

_RECORD_BATCH = "record batch"
# Slots of the flatbuffers tables in Arrow's Message.fbs, in bytes from the start of their vtable.
_MESSAGE_HEADER = 8
_BATCH_COMPRESSION = 10


class ArrowRows:
    """Implements `ports.Rows`. With its limits bound, the class is a `ports.RowReader`."""

    def __init__(self, body: bytes, limits: PublicationLimits) -> None:
        self._limits = limits
        self._table = _read_table(body)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def publications(self, start: int, count: int) -> list[Publication]:
        part = self._table.slice(start, count)
        columns = {name: part.column(name).to_pylist() for name in part.column_names}
        blank = [None] * part.num_rows
        rows = zip(*(columns.get(name, blank) for name in COLUMNS), strict=True)
        return [self._publication(row, start + index) for index, row in enumerate(rows)]

    def _publication(self, row: tuple[Any, ...], index: int) -> Publication:
        stream, value, uid, exclude_socket, broadcast_type, producer, sequence = row
        if value is None:
            raise MalformedPublication("value must not be null", index)
        if len(value) > self._limits.max_publish_size:
            raise MalformedPublication(f"value is longer than {self._limits.max_publish_size} bytes", index)
        if uid:
            check_uid(uid, "uid", index)
        if producer and (sequence is None or sequence < 0):
            raise MalformedPublication("a row with a producer needs a sequence of at least 0", index)
        return Publication(
            check_stream(stream, self._limits.max_stream_name, index),
            encode_payload(_decode_text(value, index), index),
            exclude_socket or "",
            check_type(broadcast_type, index),
            False,
            uid or "",
            _check_producer(producer, index) if producer else "",
            sequence if producer else 0,
        )


def _check_producer(name: str, index: int) -> str:
    try:
        return check_name(name, "producer")
    except BadRequest as error:
        raise MalformedPublication(str(error), index) from None


def _decode_text(value: str | bytes, index: int) -> str:
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise MalformedPublication("value is not UTF-8", index) from None


def _read_table(body: bytes) -> Any:
    """Validates all of every column, including offsets and UTF-8: the body is untrusted."""
    try:
        _reject_compressed(body)
        with pa.ipc.open_stream(pa.BufferReader(body)) as reader:
            _check_schema(reader.schema)
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise MalformedPublication(f"body is not an Arrow IPC stream: {error}") from None
    return table


def _check_schema(schema: Any) -> None:
    names = list(schema.names)
    if len(set(names)) != len(names):
        raise MalformedPublication("duplicate column")
    for field in schema:
        if field.name not in COLUMNS:
            raise MalformedPublication(f"unknown column {field.name}; known are {', '.join(COLUMNS)}")
        if field.type not in COLUMNS[field.name]:
            wanted = " or ".join(str(kind) for kind in COLUMNS[field.name])
            raise MalformedPublication(f"column {field.name} must be {wanted}, not {field.type}")
    for name in REQUIRED:
        if name not in names:
            raise MalformedPublication(f"column {name} is missing")


def _reject_compressed(body: bytes) -> None:
    """Some kilobytes could expand to gigabytes, and the library has no limit."""
    source = pa.BufferReader(body)
    while source.tell() < len(body):
        try:
            message = pa.ipc.read_message(source)
        except EOFError:
            return
        if message.type == _RECORD_BATCH and _has_compression(message.metadata.to_pybytes()):
            raise MalformedPublication("compressed columns are not supported")


def _has_compression(metadata: bytes) -> bool:
    """True if the header of this message, a RecordBatch table, has its `compression` field set."""
    try:
        message = struct.unpack_from("<I", metadata)[0]
        slot = _slot(metadata, message, _MESSAGE_HEADER)
        header = message + slot
        return bool(_slot(metadata, header + struct.unpack_from("<I", metadata, header)[0], _BATCH_COMPRESSION))
    except struct.error:
        raise MalformedPublication("body is not an Arrow IPC stream") from None


def _slot(metadata: bytes, table: int, field: int) -> int:
    """The field's place in the table; 0 if it is not set."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    size = struct.unpack_from("<H", metadata, vtable)[0]
    return int(struct.unpack_from("<H", metadata, vtable + field)[0]) if field < size else 0

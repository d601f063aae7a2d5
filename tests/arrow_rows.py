"""Bodies of rows as applications send them: Arrow IPC streams."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa


def body_of(columns: dict[str, Any], **options: Any) -> bytes:
    return body_of_table(pa.table(columns), **options)


def body_of_table(table: Any, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def rows_body(*rows: tuple[str, str]) -> bytes:
    """(stream, value) pairs."""
    return columns_body([stream for stream, _ in rows], [value for _, value in rows])


def columns_body(streams: Sequence[str], values: Sequence[str]) -> bytes:
    return body_of(
        {
            "stream": pa.array(streams, pa.string()),
            "value": pa.array([value.encode() for value in values], pa.binary()),
        }
    )

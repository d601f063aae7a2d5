"""A query's rows as the server takes them: stream, value, and what else a publication may carry, in bodies of bounded size.

A row that cannot be a publication fails its task here, with its column's name, rather than its whole batch at the server.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.options import Delivery, SinkOptions

# Rows are counted, so bytes have to be bounded too: a body is held in memory on both sides.
MAX_BODY = 4 << 20
_OPTIONAL = ("exclude_socket", "broadcast_type")


def outgoing(batch: pa.RecordBatch, options: SinkOptions) -> Iterator[pa.RecordBatch]:
    """Raises UserMistake for a row without a stream, a value or a needed uid."""
    columns = {"stream": _stream(batch, options), "value": _value(batch)}
    if (uid := _uid(batch, options)) is not None:
        columns["uid"] = uid
    for name in _OPTIONAL:
        if name in batch.schema.names:
            columns[name] = batch.column(name).cast(pa.string())
    whole = pa.RecordBatch.from_pydict(columns)
    yield from _bodies(whole, options.batch_rows)


def _bodies(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    fitting = max(1, MAX_BODY * batch.num_rows // max(batch.nbytes, 1))
    step = min(most, fitting)
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _stream(batch: pa.RecordBatch, options: SinkOptions) -> pa.Array:
    """The option wins over the column, as Kafka's `topic` does: whoever passes rows on rarely wants them where they were."""
    if options.stream:
        return pa.repeat(pa.scalar(options.stream), batch.num_rows)
    return _whole(batch.column("stream").cast(pa.string()), "stream")


def _value(batch: pa.RecordBatch) -> pa.Array:
    column = batch.column("value")
    if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        raise UserMistake(f"the column value is JSON text, as string or binary, not {column.type}; to_json() makes it")
    return _whole(column.cast(pa.binary()), "value")


def _uid(batch: pa.RecordBatch, options: SinkOptions) -> pa.Array | None:
    name = next((name for name in ("uid", "idempotency_key") if name in batch.schema.names), None)
    if name is None:
        return None
    column = batch.column(name).cast(pa.string())
    return _whole(column, name) if options.delivery is Delivery.KEYED else column


def _whole(column: pa.Array, name: str) -> pa.Array:
    """Raises UserMistake for rows without it: an empty name or key names nothing, and an empty value is no JSON."""
    if absent := column.null_count + (pc.sum(pc.equal(pc.binary_length(column), 0)).as_py() or 0):
        raise UserMistake(f"{absent} rows have no {name}")
    return column

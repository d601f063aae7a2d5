"""The journal's rows as Spark sees them: chosen, cut to size, under the declared columns and exactly their Arrow types.

Spark refuses a batch whose types differ in the least from the declared ones, so every column is made here by name and type.
"""

import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from ropewalk.pipeline.offsets import Piece
from ropewalk.pipeline.options import Columns, Selection, SourceOptions
from ropewalk.protocol.journal_schema import BINARY, INT64, SCHEMA, STRING, TIME

BATCH_ROWS = 10_000
GAP = "gap"

_MAP = pa.map_(pa.string(), pa.string())
_TYPES = {**{field.name: field.type for field in SCHEMA}, "partition": pa.int32(), "headers": _MAP}
_STANDARD = ("key", "value", "stream", "partition", "position", "offset", "epoch", "timestamp", "event", "sid", "detail", "uid")
_HEADERS = tuple(name for name in SCHEMA.names if name not in _STANDARD)
_SQL = {STRING: "string", BINARY: "binary", pa.int32(): "int", INT64: "bigint", TIME: "timestamp", _MAP: "map<string,string>"}


class KeptRows(Struct, frozen=True):
    """Conditions on rows that Spark has handed down; every one must hold."""

    streams: tuple[str, ...] | None = None
    prefix: str = ""
    first_offset: int | None = None
    end_offset: int | None = None


def arrow_schema(options: SourceOptions) -> pa.Schema:
    names = [*_STANDARD, *(_HEADERS if options.columns is Columns.JOURNAL else ()), *(("headers",) if options.headers else ())]
    return pa.schema([(name, _TYPES[name]) for name in names])


def sql_schema(options: SourceOptions) -> str:
    return ", ".join(f"`{field.name}` {_SQL[field.type]}" for field in arrow_schema(options))


class Shaper:
    """Journal tables of one shard to batches for Spark."""

    def __init__(self, options: SourceOptions, shard: int, kept: KeptRows | None = None) -> None:
        self._options = options
        self._schema = arrow_schema(options)
        self._shard = shard
        self._kept = kept or KeptRows()

    def batches(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        # The journal's own batches may be tiny; joined once, every slice is a view.
        chosen = keep(select(table, self._options.selection), self._kept).combine_chunks()
        for start in range(0, chosen.num_rows, BATCH_ROWS):
            yield self._shape(chosen.slice(start, BATCH_ROWS))

    def gap(self, piece: Piece, reason: str) -> pa.RecordBatch:
        """One row that stands for what is lost."""
        detail = json.dumps({"reason": reason, "epoch": piece.epoch, "first": piece.first, "end": piece.end})
        row = {"event": GAP, "partition": self._shard, "position": piece.first, "detail": detail}
        arrays = [pa.array([row.get(field.name)], type=field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _shape(self, table: pa.Table) -> pa.RecordBatch:
        arrays = [self._column(table, field) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, table: pa.Table, field: pa.Field) -> pa.Array:
        if field.name == "partition":
            return pa.repeat(pa.scalar(self._shard, field.type), table.num_rows)
        if field.name == "headers":
            return headers(table)
        if field.name == "value" and not self._options.value:
            return pa.nulls(table.num_rows, field.type)
        whole = table.column(field.name).chunk(0)
        return whole if whole.type == field.type else whole.cast(field.type)


def select(table: pa.Table, selection: Selection) -> pa.Table:
    if selection.streams:
        return table.filter(pc.is_in(table.column("stream"), pa.array(selection.streams, pa.string())))
    if selection.pattern:
        return table.filter(pc.match_substring_regex(table.column("stream"), f"^(?:{selection.pattern})$"))
    return table


def keep(table: pa.Table, kept: KeptRows) -> pa.Table:
    if kept.streams is not None:
        table = table.filter(pc.is_in(table.column("stream"), pa.array(kept.streams, pa.string())))
    if kept.prefix:
        table = table.filter(pc.starts_with(table.column("stream"), kept.prefix))
    if kept.first_offset is not None:
        table = table.filter(pc.greater_equal(table.column("offset"), kept.first_offset))
    if kept.end_offset is not None:
        table = table.filter(pc.less(table.column("offset"), kept.end_offset))
    return table


def headers(table: pa.Table) -> pa.Array:
    """What came with a publication beside its value; only what was said."""
    columns = [table.column(name).to_pylist() for name in _HEADERS]
    return pa.array([_said(row) for row in zip(*columns, strict=True)], type=_MAP)


def _said(row: tuple[str | int | None, ...]) -> list[tuple[str, str]]:
    named = dict(zip(_HEADERS, row, strict=True))
    if not named["producer"]:
        # A sequence belongs to its producer, and the first one is 0.
        named["sequence"] = None
    return [(name, str(value)) for name, value in named.items() if value not in (None, "")]

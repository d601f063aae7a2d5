"""The journal's rows as Spark sees them: chosen, cut to size, under the declared columns and exactly their Arrow types.

Spark refuses a batch whose types differ in the least from the declared ones, so every column is made here by name and type.
"""

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from ropewalk.model.errors import ServerError, Unavailable
from ropewalk.model.journal import ShardSpan
from ropewalk.pipeline.journal_client import JournalClient, JournalRefused
from ropewalk.pipeline.offsets import PositionRange
from ropewalk.pipeline.options import Columns, Selection, SourceOptions
from ropewalk.pipeline.tiered import ArchiveTable
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

    def gap(self, positions: PositionRange, reason: str) -> pa.RecordBatch:
        """One row in place of the lost rows."""
        detail = json.dumps({"reason": reason, "epoch": positions.generation, "first": positions.first, "end": positions.end})
        row = {"event": GAP, "partition": self._shard, "position": positions.first, "detail": detail}
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
    """The other fields of a publication as a map, without empty ones."""
    columns = [table.column(name).to_pylist() for name in _HEADERS]
    return pa.array([_header(row) for row in zip(*columns, strict=True)], type=_MAP)


def _header(row: tuple[str | int | None, ...]) -> list[tuple[str, str]]:
    named = dict(zip(_HEADERS, row, strict=True))
    if not named["producer"]:
        # A sequence belongs to its producer, and the first one is 0.
        named["sequence"] = None
    return [(name, str(value)) for name, value in named.items() if value not in (None, "")]


TRIMMED = "trimmed"
DAMAGED = "damaged"
CUT = "cut"
REPLACED = "replaced"


class DataLoss(ServerError):
    """Unread positions of a query are lost."""


class RangeReader:
    """Reads one range of positions, once."""

    def __init__(self, options: SourceOptions, positions: PositionRange, kept: KeptRows | None = None) -> None:
        self._options = options
        self._range = positions
        self._client = JournalClient(options.address)
        self._shaper = Shaper(options, positions.shard, kept)

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._range.replaced:
            yield from self._lost(self._range, REPLACED)
            return
        spans, cursor, refused_at = self._spans(), self._range.first, -1
        while cursor < self._range.end:
            span = next((span for span in spans if cursor < span.end), None)
            if span is None:
                yield from self._lost(self._part(cursor, self._range.end), CUT)
                return
            stop = min(self._range.end, span.end)
            if cursor < span.first:
                stop = min(self._range.end, span.first)
                # Retention deletes from the beginning: rows missing after existing ones were damaged.
                yield from self._absent(cursor, stop, TRIMMED if span is spans[0] else DAMAGED)
            elif (table := self._read(cursor, stop)) is not None:
                stop = cursor + table.num_rows
                yield from self._shaper.batches(table)
            elif refused_at == cursor:
                raise Unavailable(f"the journal lists position {cursor} of shard {self._range.shard} but does not return it")
            else:
                # Retention or a detected damage may have removed it. Then the journal lists other spans.
                spans, refused_at, stop = self._spans(), cursor, cursor
            cursor = stop

    def _spans(self) -> list[ShardSpan]:
        """What the journal holds of the range's generation."""
        return [span for span in self._client.spans().get(self._range.shard, ()) if span.epoch == self._range.generation]

    def _read(self, first: int, end: int) -> pa.Table | None:
        """The beginning of a range; None if it is not there."""
        try:
            table = self._client.read(self._range.shard, first, end)
        except JournalRefused:
            return None
        if not table.num_rows:
            return None
        _check_dense(table, self._range.shard, first)
        return table

    def _absent(self, first: int, end: int, reason: str) -> Iterator[pa.RecordBatch]:
        """Positions that are not in the journal: read those that the archive has."""
        cursor = first
        for table in self._archived(first, end):
            for run in _dense_runs(table):
                start: int = run.column("position")[0].as_py()
                if start > cursor:
                    yield from self._lost(self._part(cursor, start), reason)
                yield from self._shaper.batches(run)
                cursor = start + run.num_rows
        if cursor < end:
            yield from self._lost(self._part(cursor, end), reason)

    def _archived(self, first: int, end: int) -> Iterator[pa.Table]:
        if self._options.archive:
            yield from ArchiveTable(self._options.archive).rows(self._range.shard, first, end)

    def _lost(self, positions: PositionRange, reason: str) -> Iterator[pa.RecordBatch]:
        if self._options.fail_on_data_loss:
            raise DataLoss(loss_text(positions, reason))
        yield self._shaper.gap(positions, reason)

    def _part(self, first: int, end: int) -> PositionRange:
        return PositionRange(self._range.shard, self._range.generation, first, end)


def loss_text(positions: PositionRange, reason: str) -> str:
    where = f"shard {positions.shard}, generation {positions.generation!r}"
    go_on = "Set failOnDataLoss to false to go on with a row of event 'gap' in its place"
    match reason:
        case "trimmed":
            what = f"positions {positions.first} to {positions.end - 1} are neither in the journal nor in an archive"
        case "damaged":
            what = (
                f"positions {positions.first} to {positions.end - 1} were damaged in the journal and are in no archive; "
                "`ropewalk journal verify` lists the losses"
            )
        case "cut":
            what = f"positions {positions.first} to {positions.end - 1} lie beyond its end: lost by damage, or never written"
        case _:
            what = f"the journal was replaced and does not know this generation, read up to position {positions.first}"
    return f"{where}: {what}. {go_on}."


def _check_dense(table: pa.Table, shard: int, first: int) -> None:
    """The contract with the server; a batch that breaks it must not reach anyone."""
    positions = table.column("position")
    found: tuple[int, int] = (positions[0].as_py(), positions[-1].as_py())
    if found != (first, first + table.num_rows - 1):
        raise Unavailable(f"the journal answered positions {found} for shard {shard} from position {first}")


def _dense_runs(table: pa.Table) -> Iterator[pa.Table]:
    """Cut where a position is missing. Sorted by position."""
    positions: list[int] = table.column("position").to_pylist()
    start = 0
    for row in range(1, len(positions) + 1):
        if row == len(positions) or positions[row] != positions[row - 1] + 1:
            yield table.slice(start, row - start)
            start = row


_FARTHEST = 1 << 63


class Pushed(Struct, frozen=True):
    """What all filters together leave: shards, positions [first, end) and conditions on rows."""

    kept: KeptRows = KeptRows()
    shards: frozenset[int] | None = None
    first: int = 0
    end: int = _FARTHEST

    def clip(self, ranges: Iterable[PositionRange]) -> list[PositionRange]:
        chosen = (positions for positions in ranges if self.shards is None or positions.shard in self.shards)
        clipped = (
            replace(positions, first=max(positions.first, self.first), end=min(positions.end, self.end)) for positions in chosen
        )
        return [positions for positions in clipped if positions.rows > 0]


def absorb(pushed: Pushed, condition: Filter) -> Pushed | None:
    """With one more condition; None for one that is not understood."""
    match condition:
        case EqualTo(attribute=("stream",), value=str(name)):
            return _streams(pushed, (name,))
        case In(attribute=("stream",), value=names) if all(isinstance(name, str) for name in names):
            return _streams(pushed, tuple(str(name) for name in names))
        case StringStartsWith(attribute=("stream",), value=prefix) if not pushed.kept.prefix:
            return replace(pushed, kept=replace(pushed.kept, prefix=prefix))
        case EqualTo(attribute=("partition",), value=int(shard)):
            return _shards(pushed, {shard})
        case In(attribute=("partition",), value=shards) if all(isinstance(shard, int) for shard in shards):
            return _shards(pushed, {int(str(shard)) for shard in shards})
        case _:
            return _range(pushed, condition)


def _range(pushed: Pushed, condition: Filter) -> Pushed | None:
    match condition:
        case EqualTo(attribute=(name,), value=int(value)):
            return _between(pushed, name, value, value + 1)
        case GreaterThan(attribute=(name,), value=int(value)):
            return _between(pushed, name, value + 1, _FARTHEST)
        case GreaterThanOrEqual(attribute=(name,), value=int(value)):
            return _between(pushed, name, value, _FARTHEST)
        case LessThan(attribute=(name,), value=int(value)):
            return _between(pushed, name, None, value)
        case LessThanOrEqual(attribute=(name,), value=int(value)):
            return _between(pushed, name, None, value + 1)
        case _:
            return None


def _between(pushed: Pushed, name: str, first: int | None, end: int) -> Pushed | None:
    kept = pushed.kept
    match name:
        case "position":
            return replace(pushed, first=max(pushed.first, first or 0), end=min(pushed.end, end))
        case "offset":
            lowest = first if kept.first_offset is None else max(kept.first_offset, first or kept.first_offset)
            highest = end if kept.end_offset is None else min(kept.end_offset, end)
            return replace(pushed, kept=replace(kept, first_offset=lowest, end_offset=highest if highest < _FARTHEST else None))
        case _:
            return None


def _streams(pushed: Pushed, names: tuple[str, ...]) -> Pushed:
    known = pushed.kept.streams
    both = names if known is None else tuple(name for name in names if name in known)
    return replace(pushed, kept=replace(pushed.kept, streams=both))


def _shards(pushed: Pushed, shards: set[int]) -> Pushed:
    both = shards if pushed.shards is None else shards & pushed.shards
    return replace(pushed, shards=frozenset(both))

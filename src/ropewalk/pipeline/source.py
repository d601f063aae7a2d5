"""`spark.readStream.format("ropewalk")` and `spark.read.format("ropewalk")`: the journal by shard, as Arrow batches.

Two readers exist for each query: one in a driver process, which may remember, and copies in tasks, which may not.
"""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import Marks, ShardMark, ShardSpan, first_kept_span
from ropewalk.pipeline.batch_plan import TaskRanges, oldest, plan
from ropewalk.pipeline.journal_client import JournalClient
from ropewalk.pipeline.offsets import (
    OffsetJson,
    PositionRange,
    Spans,
    advance,
    decode,
    earliest,
    encode,
    end_offsets,
    generation_start,
    latest,
    ranges_between,
    remaining,
)
from ropewalk.pipeline.options import EARLIEST, LATEST, Boundary, SourceOptions
from ropewalk.pipeline.rows import KeptRows, Pushed, RangeReader, absorb
from ropewalk.pipeline.tiered import ArchiveTable, RowTimes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from ropewalk.pipeline.options import sink_options, source_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ropewalk.pipeline.sink import RopewalkBatchWriter, RopewalkStreamWriter


SAMPLE_BYTES = 1 << 16


@dataclass
class TaskPartition(InputPartition):
    """One task's ranges."""

    ranges: TaskRanges


class ShardStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The journal as a stream."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._client = JournalClient(options.address)
        self._resolver = OffsetResolver(options, self._client)
        self._first: OffsetJson | None = None
        self._target: Marks | None = None
        self._done: OffsetJson | None = None
        self._granted_at = time.monotonic()

    def initialOffset(self) -> OffsetJson:
        # Spark calls this twice and plans with the second result. If they differed, the rows between would be lost.
        if self._first is None:
            self._first = self._pinned(encode(self._resolver.resolve(self._options.start, self._resolver.spans())))
        return self._first

    def getDefaultReadLimit(self) -> ReadLimit:
        batch_limits = self._options.batch_limits
        if batch_limits.max_rows:
            return ReadMaxRows(batch_limits.max_rows)
        return ReadMaxBytes(batch_limits.max_bytes) if batch_limits.max_bytes else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = latest(self._resolver.spans())

    def latestOffset(self, start: OffsetJson, limit: ReadLimit) -> OffsetJson:
        self._finished(start)
        spans = self._resolver.spans()
        end = self._target or latest(spans)
        begin = complete(decode(start), end)
        lags = remaining(spans, begin, end)
        if self._too_few(sum(lags.values())):
            return encode(begin)
        self._granted_at = time.monotonic()
        rows = self._rows(limit, spans, begin, lags)
        granted = lags if rows is None else self._oldest(rows, spans, begin, end, lags)
        return encode({shard: advance(shard, spans[shard], begin[shard], end[shard], granted[shard]) for shard in end})

    def reportLatestOffset(self) -> OffsetJson:
        return end_offsets(self._resolver.spans())

    def partitions(self, start: OffsetJson, end: OffsetJson) -> Sequence[InputPartition]:
        stop = decode(end)
        begin = complete(decode(start), stop)
        # The journal is only queried where a generation ends: within one, the marks are enough.
        spans = self._resolver.spans() if any(begin[shard].epoch != stop[shard].epoch for shard in stop) else {}
        # Without a consumer, "latest" of a run that crashed before its first batch was done may lie behind that of this run.
        between = _forward if start == self._first else ranges_between
        ranges = [positions for shard in stop for positions in between(shard, spans.get(shard, ()), begin[shard], stop[shard])]
        return [TaskPartition(of_task) for of_task in plan(ranges, self._options.batch_limits)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(self._options, partition)

    def _finished(self, start: OffsetJson) -> None:
        """Spark asks for the next batch only once the one before is done for good, and after the last batch it asks too, which
        it does not with `commit`. So a consumer's mark is where the next batch would begin."""
        if self._options.consumer and start != self._done:
            self._client.move(self._options.consumer, start)
            self._done = start

    def _pinned(self, offset: OffsetJson) -> OffsetJson:
        """Where a consumer by this name began for the first time, so that "latest" stays what it was through a crash."""
        return self._client.pin(self._options.consumer, offset) if self._options.consumer else offset

    def _too_few(self, rows: int) -> bool:
        batch_limits = self._options.batch_limits
        waited = time.monotonic() - self._granted_at
        return self._target is None and 0 < rows < batch_limits.min_rows and waited < batch_limits.max_delay

    def _oldest(self, limit: int, spans: Spans, begin: Marks, end: Marks, lags: dict[int, int]) -> dict[int, int]:
        """Every shard's part of a batch of at most `limit` rows."""
        times = RowTimes(self._client, self._options.archive, spans)
        return oldest(
            lags,
            limit,
            lambda shard, row: times.at(shard, advance(shard, spans[shard], begin[shard], end[shard], row).position),
        )

    def _rows(self, limit: ReadLimit, spans: Spans, begin: Marks, lags: dict[int, int]) -> int | None:
        """How many rows this batch may have; None for all."""
        if isinstance(limit, ReadAllAvailable) or not any(lags.values()):
            return None
        batch_limits = self._options.batch_limits
        by_bytes = self._rows_in(batch_limits.max_bytes, spans, begin, lags) if batch_limits.max_bytes else None
        return min((rows for rows in (batch_limits.max_rows or None, by_bytes) if rows is not None), default=None)

    def _rows_in(self, size: int, spans: Spans, begin: Marks, lags: dict[int, int]) -> int:
        """The journal does not report bytes, so take a sample of the shard with the highest lag."""
        shard = max(lags, key=lambda shard: lags[shard])
        span = next((span for span in reversed(spans[shard]) if span.end > span.first), None)
        if span is None:  # all of it is gone, and what stands for it is small
            return lags[shard]
        first = max(span.first, begin[shard].position) if begin[shard].epoch == span.epoch else span.first
        sample = self._client.read(shard, min(first, span.end - 1), span.end, SAMPLE_BYTES)
        rows: int = size * sample.num_rows // max(sample.nbytes, 1)
        return max(1, rows)


class ShardBatchReader(DataSourceReader):
    """The journal as it is now, or a part of it."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._pushed = Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        resolver = OffsetResolver(self._options, JournalClient(self._options.address))
        spans = resolver.spans()
        begin, stop = resolver.resolve(self._options.start, spans), resolver.resolve(self._options.end, spans)
        ranges = [positions for shard in stop for positions in _forward(shard, spans[shard], begin[shard], stop[shard])]
        return [TaskPartition(of_task) for of_task in plan(self._pushed.clip(ranges), self._options.batch_limits)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(self._options, partition, self._pushed.kept)


class PushdownBatchReader(ShardBatchReader):
    """A class of its own: Spark refuses a reader that can take filters unless its setting for them is on."""

    def pushFilters(self, filters: list["Filter"]) -> Iterable["Filter"]:
        for condition in filters:
            narrowed = absorb(self._pushed, condition)
            if narrowed is None:
                yield condition
            else:
                self._pushed = narrowed


def _read(options: SourceOptions, partition: InputPartition, kept: KeptRows | None = None) -> Iterator["pa.RecordBatch"]:
    # Where there is nothing to read, Spark runs one task all the same, with a partition of its own.
    for positions in partition.ranges if isinstance(partition, TaskPartition) else ():
        yield from RangeReader(options, positions, kept).batches()


def complete(begin: Marks, end: Marks) -> Marks:
    """A shard that the query has not read before begins with everything there is."""
    return {shard: begin.get(shard, ShardMark("", 0)) for shard in end}


def _forward(shard: int, own: Sequence[ShardSpan], begin: ShardMark, end: ShardMark) -> list[PositionRange]:
    """An end before the start is nothing to read, where a person has given both or a query has just begun."""
    backward = begin.epoch == end.epoch and end.position < begin.position
    return [] if backward else ranges_between(shard, own, begin, end)


# Kafka's numbers for the two words, inside JSON.
_LATEST_NUMBER = -1
_EARLIEST_NUMBER = -2


class OffsetResolver:
    """Resolves start and end offsets to marks, from the journal and the archive if there is one."""

    def __init__(self, options: SourceOptions, client: JournalClient) -> None:
        self._options = options
        self._client = client

    def spans(self) -> Spans:
        """The shards that this query reads."""
        spans = self._client.spans()
        assign = self._options.selection.assign
        if absent := sorted(set(assign) - set(spans)):
            raise UserMistake(f"the journal has the shards 0 to {len(spans) - 1}; the option assign names {absent}")
        return {shard: own for shard, own in spans.items() if not assign or shard in assign}

    def resolve(self, boundary: Boundary, spans: Spans) -> Marks:
        if boundary.timestamp is not None:
            return {shard: self._since(shard, own, boundary.timestamp) for shard, own in spans.items()}
        if boundary.offsets == LATEST:
            return latest(spans)
        oldest = self._oldest(spans)
        if boundary.offsets == EARLIEST:
            return oldest
        # Shards without a start begin at the earliest position, shards without an end stop at the latest.
        return _from_json(
            boundary.offsets, spans, oldest, _LATEST_NUMBER if boundary is self._options.end else _EARLIEST_NUMBER
        )

    def _oldest(self, spans: Spans) -> Marks:
        if not self._options.archive:
            return earliest(spans)
        archive = ArchiveTable(self._options.archive)
        return {shard: _reaching(own, archive.first(shard)) for shard, own in spans.items()}

    def _since(self, shard: int, own: Sequence[ShardSpan], timestamp: int) -> ShardMark:
        oldest = first_kept_span(own)
        if self._options.archive and oldest:
            archived = ArchiveTable(self._options.archive).first_since(shard, timestamp)
            if archived is not None and archived < oldest.first:
                return _at(own, archived)
        for span in own:
            if (position := self._halve(span, timestamp)) < span.end:
                return ShardMark(span.epoch, position)
        return latest({shard: own})[shard]

    def _halve(self, span: ShardSpan, timestamp: int) -> int:
        low, high = span.first, span.end
        while low < high:
            middle = (low + high) // 2
            if self._time(span.shard, middle) < timestamp:
                low = middle + 1
            else:
                high = middle
        return low

    def _time(self, shard: int, position: int) -> float:
        registered = self._client.read(shard, position, position + 1, max_bytes=1).column("timestamp")[0].as_py()
        return float(registered.timestamp() * 1000)


def _reaching(own: Sequence[ShardSpan], archived: int | None) -> ShardMark:
    oldest = earliest({0: own})[0]
    return oldest if archived is None or archived >= oldest.position else _at(own, archived)


def _at(own: Sequence[ShardSpan], position: int) -> ShardMark:
    """A later generation of a shard begins above all positions of the one before, so a position determines its generation."""
    if not own:
        return ShardMark("", position)
    span = next((span for span in own if position < span.end), own[-1])
    # Rows are missing between two generations, but may exist below the first known one.
    return ShardMark(span.epoch, max(position, generation_start(span)) if position >= generation_start(own[0]) else position)


def _from_json(text: str, spans: Spans, oldest: Marks, left_out: int) -> Marks:
    """`{"0": {"e": "…", "p": 12}}` as a query's progress shows it, or `{"0": 12}` with -2 and -1 for the two words."""
    try:
        given = {int(shard): mark for shard, mark in json.loads(text).items()}
        return {shard: _mark(given.get(shard, left_out), oldest[shard], own) for shard, own in spans.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserMistake(
            f'offsets are written like {{"0": 12, "1": -2}} or as a query\'s progress shows them, not {text!r}'
        ) from error


def _mark(given: object, oldest: ShardMark, own: Sequence[ShardSpan]) -> ShardMark:
    match given:
        case int() if given == _LATEST_NUMBER:
            return ShardMark(own[-1].epoch, own[-1].end) if own else oldest
        case int() if given == _EARLIEST_NUMBER:
            return oldest
        case int() if given >= 0:
            return _at(own, given)
        case {"e": str(name), "p": int(position)}:
            return ShardMark(name, position)
        case _:
            raise ValueError(given)


class RopewalkDataSource(DataSource):
    """Reads the journal, publishes into streams. Readers and writers are imported lazily: Spark loads this module often."""

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        return "ropewalk"

    def schema(self) -> str:
        from ropewalk.pipeline.rows import sql_schema

        return sql_schema(source_options(self.options, streaming=True))

    def streamReader(self, schema: "StructType") -> "ShardStreamReader":
        from ropewalk.pipeline.source import ShardStreamReader

        return ShardStreamReader(source_options(self.options, streaming=True))

    def reader(self, schema: "StructType") -> "ShardBatchReader":
        from ropewalk.pipeline.source import PushdownBatchReader, ShardBatchReader

        options = source_options(self.options, streaming=False)
        return PushdownBatchReader(options) if options.pushdown else ShardBatchReader(options)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "RopewalkStreamWriter":
        from ropewalk.pipeline.sink import RopewalkStreamWriter, check

        options = sink_options(self.options)
        check(options, schema)
        return RopewalkStreamWriter(options)

    def writer(self, schema: "StructType", overwrite: bool) -> "RopewalkBatchWriter":
        from ropewalk.pipeline.sink import RopewalkBatchWriter, check

        if overwrite:
            raise UserMistake('publications are only ever appended, and nothing can be overwritten: use mode("append")')
        options = sink_options(self.options)
        check(options, schema)
        return RopewalkBatchWriter(options)

"""Parquet files of the archive, read by row group. Sync, made for threads; files never change, so what is known stays true.

Invariant: an answer holds every row of the asked range that the files have, up to its bounds, in order, each once. A row group
is left out only where its statistics prove that the stream is not in it.
A file that was changed or cut nevertheless gives no row: its content is compared with the digest in its name before the first
one, and again when its size or its times are others, as they are seen before and after its rows are read. Files are read, never
mapped: a mapped file that is cut short ends the process.
"""

import errno
import os
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ropewalk.core.digests import is_unchanged
from ropewalk.model.history import ColdPiece, HistoryRange
from ropewalk.model.journal import decode_ts_producer
from ropewalk.model.messages import Registered, message_fields
from ropewalk.protocol.journal_schema import without_views

# --- what a Parquet file says of its row groups ----------------------------------------------------------------------

BEYOND = "\U0010ffff"  # no stream's name is above it, so a row group without statistics is looked at always


class RowGroup(NamedTuple):
    """One row group. `one_stream` and `epoch`: all of its rows have these, so statistics say everything. `ordered`: its rows
    are sorted by stream and offset."""

    number: int
    rows: int
    ordered: bool
    first_stream: str
    last_stream: str
    one_stream: bool
    epoch: str | None
    first_offset: int
    last_offset: int
    last_time: float


class Footer:
    """Row groups in the file's order, which is that of their streams."""

    def __init__(self, metadata: pq.FileMetaData) -> None:
        self.metadata = metadata
        names = {metadata.schema.column(index).name: index for index in range(metadata.num_columns)}
        self._groups = [_group(metadata.row_group(number), number, names) for number in range(metadata.num_row_groups)]
        self._lasts = [group.last_stream for group in self._groups]

    def of(self, stream: str) -> Iterator[RowGroup]:
        """Those that may hold rows of the stream."""
        for group in self._groups[bisect_left(self._lasts, stream) :]:
            if group.first_stream > stream:
                return
            yield group


class _Range(NamedTuple):
    low: object
    high: object
    whole: bool  # no row is without a value


def _group(found: pq.RowGroupMetaData, number: int, names: dict[str, int]) -> RowGroup:
    streams, epochs = _range(found, names["stream"]), _range(found, names["epoch"])
    offsets, times = _range(found, names["offset"]), _range(found, names["timestamp"])
    ordered = [(names["stream"], False), (names["offset"], False)]
    one_stream = streams is not None and streams.whole and streams.low == streams.high
    one_epoch = epochs is not None and epochs.whole and epochs.low == epochs.high
    return RowGroup(
        number,
        found.num_rows,
        [(each.column_index, each.descending) for each in found.sorting_columns[:2]] == ordered,
        str(streams.low) if streams else "",
        str(streams.high) if streams else BEYOND,
        one_stream,
        str(epochs.low) if epochs and one_epoch else None,
        _whole_number(offsets.low) if offsets else 0,
        _whole_number(offsets.high) if offsets else 2**63 - 1,
        _seconds(times.high) if times else float("inf"),
    )


def _range(group: pq.RowGroupMetaData, column: int) -> _Range | None:
    statistics = group.column(column).statistics
    if statistics is None or not statistics.has_min_max:
        return None
    return _Range(statistics.min, statistics.max, statistics.has_null_count and statistics.null_count == 0)


def _whole_number(value: object) -> int:
    assert isinstance(value, int)
    return value


def _seconds(value: object) -> float:
    assert isinstance(value, datetime)
    return value.timestamp()


# --- rows as registered messages -------------------------------------------------------------------------------------

NAMES = ["stream", "epoch"]
CELLS = ["offset", "timestamp", "value", "exclude_socket", "broadcast_type", "uid", "detail", "key"]
KEYS = [*NAMES, "offset", "timestamp"]
COLUMNS = [*NAMES, *CELLS]
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


def cut(rows: pa.Table, first: int, last: int, since: float) -> pa.Table:
    """The same for rows of one epoch of one stream that are in order."""
    offsets, every = rows["offset"], range(len(rows))
    begin = bisect_left(every, first, key=lambda row: offsets[row].as_py())
    end = bisect_right(every, last, lo=begin, key=lambda row: offsets[row].as_py())
    rows = rows.slice(begin, end - begin)
    return rows.filter(pc.greater_equal(microseconds(rows), round(since * 1e6))) if since > 0 else rows


def microseconds(rows: pa.Table) -> pa.ChunkedArray:
    return rows["timestamp"].cast(pa.int64())


def registered(rows: pa.Table, stream: str, epoch: str) -> list[Registered]:
    """All rows are of this epoch of this stream: their names are not made again for each."""
    columns = [microseconds(rows).to_pylist() if name == "timestamp" else rows[name].to_pylist() for name in CELLS]
    return [
        Registered(
            stream,
            value or b"",
            time / 1e6,
            epoch,
            offset,
            exclude or "",
            kind or "",
            message_fields(uid or "", decode_ts_producer(detail or ""), key if key != stream else ""),
        )
        for offset, time, value, exclude, kind, uid, detail, key in zip(*columns, strict=True)
    ]


# --- the index -------------------------------------------------------------------------------------------------------

FOOTERS = 512
CHECKED = 65536
EXTENTS = 16384
SHARED = 262144
"""Extents of row groups that many streams share. Whoever reads such a group's keys learns the extents of all its streams."""

MAX_BYTES = 16 << 20
"""Payload bytes after which an answer ends with the row group, whatever its limit of messages."""

BROKEN = (OSError, ValueError, TypeError, LookupError, ArithmeticError, AssertionError, pa.ArrowException)
"""What reading bytes that are not a Parquet file, or not one of the archive, ends in."""

T = TypeVar("T")


class UnreadableFile(OSError):
    """A file that is there and is not what was written."""

    def __init__(self, reason: str, path: str) -> None:
        super().__init__(errno.EIO, reason, path)


class File(NamedTuple):
    """One file as the Delta log tells of it; what it does not tell is as wide as can be."""

    path: str
    first_stream: str
    last_stream: str
    first_offset: int
    last_offset: int
    last_time: float


FileStamp = tuple[int, int, int]
"""A file's size and times. What was learned of a file is true as long as they are the same."""


class Bounds(NamedTuple):
    """Of one epoch of a stream within a row group; the numbers are exact. Its rows lie in [begin, end). `alone`: they are all
    that is there, in order."""

    first: int
    last: int
    last_time: float
    begin: int
    end: int
    alone: bool


class RowGroupExtent(NamedTuple):
    """The rows of one epoch of a stream in one row group."""

    path: str
    stamp: FileStamp
    group: int
    bounds: Bounds


class ParquetIndex:
    """The files below one root. What was read of them is remembered, the least used is forgotten first."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._as_written: Remembered[bool] = Remembered(CHECKED)
        self._footers: Remembered[Footer] = Remembered(FOOTERS)
        self._extents: Remembered[tuple[RowGroupExtent, ...]] = Remembered(EXTENTS)
        self._shared: Remembered[dict[tuple[str, str], Bounds]] = Remembered(SHARED, weigh=len)

    def read(self, files: Sequence[File], wanted: HistoryRange) -> ColdPiece:
        """Raises FileNotFoundError where a file is gone, and UnreadableFile where one is not what was written."""
        waiting = sorted(self._in_range(files, wanted), key=lambda extent: extent.bounds.first)
        found: dict[int, Registered] = {}
        for place, extent in enumerate(waiting):
            found |= {message.offset: message for message in self._messages(extent, wanted)}
            following = waiting[place + 1].bounds.first if place + 1 < len(waiting) else None
            if following is not None and _enough(found, wanted.limit, following):
                # Only what lies surely below everything that was not read may be told.
                return ColdPiece(_lowest(found, wanted.limit, following), more=True)
        return ColdPiece(_lowest(found, wanted.limit, None), more=len(found) > wanted.limit)

    def _in_range(self, files: Sequence[File], wanted: HistoryRange) -> Iterator[RowGroupExtent]:
        for file in files:
            if not file.first_stream <= wanted.stream <= file.last_stream or file.last_time < wanted.since:
                continue
            if file.last_offset < wanted.first or file.first_offset > wanted.last:
                continue
            for extent in self._extents_of(file.path, wanted.stream, wanted.epoch):
                has = extent.bounds
                if has.last >= wanted.first and has.first <= wanted.last and has.last_time >= wanted.since:
                    yield extent

    def _extents_of(self, path: str, stream: str, epoch: str) -> tuple[RowGroupExtent, ...]:
        def look() -> tuple[RowGroupExtent, ...]:
            with _reading(path):
                stamp = self._stamp(path)
                groups = self._footer(path, stamp).of(stream)
                found = ((group.number, self._bounds(path, stamp, group, stream, epoch)) for group in groups)
                return tuple(RowGroupExtent(path, stamp, number, bounds) for number, bounds in found if bounds)

        return self._extents.get((path, stream, epoch), look)

    def _bounds(self, path: str, stamp: FileStamp, group: RowGroup, stream: str, epoch: str) -> Bounds | None:
        if group.one_stream and group.epoch is not None:
            if group.epoch != epoch:
                return None
            return Bounds(group.first_offset, group.last_offset, group.last_time, 0, group.rows, group.ordered)

        def look() -> dict[tuple[str, str], Bounds]:
            return _bounds(self._group(path, stamp, group.number, KEYS), group.ordered)

        return self._shared.get((path, stamp, group.number), look).get((stream, epoch))

    def _messages(self, extent: RowGroupExtent, wanted: HistoryRange) -> list[Registered]:
        path = extent.path
        try:
            with _reading(path):
                stamp = self._checked(path)
                rows = self._rows(extent, stamp, wanted)
                # Of one extent, which is in order, no more than the limit can be needed. One more tells that there are more.
                messages = registered(rows.slice(0, wanted.limit + 1), wanted.stream, wanted.epoch)
                if self._stamp(path) != stamp:
                    raise UnreadableFile("it was changed while it was read", path)
                return messages
        except UnreadableFile:
            # What was read of the file before may be wrong too, and its owner may put the right one back.
            self._extents.forget((path, wanted.stream, wanted.epoch))
            self._shared.forget((path, extent.stamp, extent.group))
            self._footers.forget((path, extent.stamp))
            raise

    def _rows(self, extent: RowGroupExtent, stamp: FileStamp, wanted: HistoryRange) -> pa.Table:
        if extent.stamp == stamp and extent.bounds.alone:
            begin, end = extent.bounds.begin, extent.bounds.end
            rows = self._group(extent.path, stamp, extent.group, CELLS).slice(begin, end - begin)
            return cut(rows, wanted.first, wanted.last, wanted.since)
        if extent.stamp != stamp:
            self._extents.forget((extent.path, wanted.stream, wanted.epoch))  # the next read learns them of the file as it is
        rows = self._group(extent.path, stamp, extent.group, COLUMNS)
        rows = chosen(rows, wanted.stream, wanted.epoch, wanted.first, wanted.last, wanted.since)
        return rows.take(pc.sort_indices(rows["offset"]).slice(0, wanted.limit + 1))

    def _group(self, path: str, stamp: FileStamp, number: int, columns: list[str]) -> pa.Table:
        # With its footer known a file is opened without reading anything. Buffers that are filled ahead would be filled by
        # other threads, and waiting for them takes longer than reading the few columns. Names repeat: they stay a dictionary.
        metadata = self._footer(path, stamp).metadata
        with pa.OSFile(f"{self._root}/{path}") as source:
            file = pq.ParquetFile(source, metadata=metadata, pre_buffer=False, read_dictionary=NAMES)
            rows = file.read_row_group(number, columns=columns, use_threads=False)
            return rows.cast(without_views(rows.schema))

    def _footer(self, path: str, stamp: FileStamp) -> Footer:
        return self._footers.get((path, stamp), lambda: Footer(pq.read_metadata(f"{self._root}/{path}")))

    def _checked(self, path: str) -> FileStamp:
        """Only for files whose rows are about to be told: which files those are is found out without reading all of each."""

        def look() -> bool:
            with open(f"{self._root}/{path}", "rb") as file:
                return is_unchanged(path, file)

        stamp = self._stamp(path)
        if not self._as_written.get((path, stamp), look):
            raise UnreadableFile("it was changed after it was written", path)
        return stamp

    def _stamp(self, path: str) -> FileStamp:
        found = os.stat(f"{self._root}/{path}")
        return found.st_size, found.st_mtime_ns, found.st_ctime_ns


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except UnreadableFile:
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "it is missing", path) from error
    except BROKEN as error:
        raise UnreadableFile(str(error), path) from error


class Remembered(Generic[T]):
    """A bounded memory that threads share. `weigh` tells how much of the limit a thing takes."""

    def __init__(self, limit: int, weigh: Callable[[T], int] = lambda made: 1) -> None:
        self._limit = limit
        self._weigh = weigh
        self._weight = 0
        self._known: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Two threads may make the same thing at once; that costs time only."""
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        made = make()
        with self._lock:
            if key not in self._known:
                self._known[key] = made
                self._weight += self._weigh(made)
            while self._weight > self._limit:
                self._weight -= self._weigh(self._known.popitem(last=False)[1])
        return made

    def forget(self, key: Hashable) -> None:
        with self._lock:
            if key in self._known:
                self._weight -= self._weigh(self._known.pop(key))


def _bounds(keys: pa.Table, ordered: bool) -> dict[tuple[str, str], Bounds]:
    """Of every stream and epoch in a row group. Rows without an epoch are no publications."""
    found = keys.append_column("row", pa.arange(0, len(keys))).group_by(NAMES, use_threads=False)
    ends = found.aggregate([("offset", "min_max"), ("timestamp", "max"), ("row", "min_max"), ("row", "count")])
    times = ends["timestamp_max"].cast(pa.int64()).to_pylist()
    columns = [ends[name].to_pylist() for name in (*NAMES, "offset_min_max", "row_min_max", "row_count")]
    return {
        (stream, epoch): _exact(offsets, time / 1e6, rows["min"], rows["max"] + 1, count, ordered)
        for stream, epoch, offsets, rows, count, time in zip(*columns, times, strict=True)
        if epoch is not None
    }


def _exact(offsets: dict[str, object], last_time: float, begin: int, end: int, rows: int, ordered: bool) -> Bounds:
    first, last = _whole_number(offsets["min"]), _whole_number(offsets["max"])
    return Bounds(first, last, last_time, begin, end, ordered and rows == end - begin)


def _enough(found: dict[int, Registered], limit: int, following: int) -> bool:
    told = [message for offset, message in found.items() if offset < following]
    return len(told) >= limit or (bool(told) and sum(len(message.payload) for message in told) >= MAX_BYTES)


def _lowest(found: dict[int, Registered], limit: int, below: int | None) -> tuple[Registered, ...]:
    offsets = sorted(offset for offset in found if below is None or offset < below)
    return tuple(found[offset] for offset in offsets[:limit])

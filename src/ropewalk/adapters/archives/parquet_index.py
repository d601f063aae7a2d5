"""Parquet files of the archive, read by row group. Blocking, for use in threads. Files never change, so indexes are cached.

Invariant: an answer has every stored row of the requested range, up to its limits, in order, each once. A row group is skipped
only if its statistics prove that the stream is not in it.
No row is returned from a file that was changed or truncated: its content is compared with the digest in its name before the
first read, and again whenever its size or times differ before or after a read. Files are read, never mapped: truncating a
mapped file would crash the process.
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

# --- the row groups of a Parquet file --------------------------------------------------------------------------------

BEYOND = "\U0010ffff"  # no stream name sorts above it, so a row group without statistics is always read


class RowGroup(NamedTuple):
    """One row group.

    Attributes:
        ordered: its rows are sorted by stream and offset.
        one_stream: all rows are of one stream.
        epoch: the epoch of all rows; None if they differ.
    """

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
    """Row groups in the order of the file, which is the order of their streams."""

    def __init__(self, metadata: pq.FileMetaData) -> None:
        self.metadata = metadata
        names = {metadata.schema.column(index).name: index for index in range(metadata.num_columns)}
        self._groups = [_group(metadata.row_group(number), number, names) for number in range(metadata.num_row_groups)]
        self._lasts = [group.last_stream for group in self._groups]

    def of(self, stream: str) -> Iterator[RowGroup]:
        """The row groups that may hold rows of the stream."""
        for group in self._groups[bisect_left(self._lasts, stream) :]:
            if group.first_stream > stream:
                return
            yield group


class _Range(NamedTuple):
    low: object
    high: object
    whole: bool  # no null values


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
"""Seconds. Later times overflow 64-bit microseconds."""


def kept_time(moment: float) -> float:
    """Round to the microsecond, as the columns do, so that it compares equal to stored times."""
    return round(min(moment, FAR_FUTURE) * 1e6) / 1e6


def chosen(rows: pa.Table, stream: str, epoch: str, first: int, last: int, since: float) -> pa.Table:
    """Publications of one epoch of the stream in this range. Rows other than publications have no epoch."""
    offsets = rows["offset"]
    mask = pc.and_(pc.equal(rows["stream"], stream), pc.equal(rows["epoch"], epoch))
    mask = pc.and_(mask, pc.and_(pc.greater_equal(offsets, first), pc.less_equal(offsets, last)))
    if since > 0:
        mask = pc.and_(mask, pc.greater_equal(microseconds(rows), round(since * 1e6)))
    return rows.filter(mask)


def cut(rows: pa.Table, first: int, last: int, since: float) -> pa.Table:
    """`chosen` for ordered rows of one epoch of one stream."""
    offsets, every = rows["offset"], range(len(rows))
    begin = bisect_left(every, first, key=lambda row: offsets[row].as_py())
    end = bisect_right(every, last, lo=begin, key=lambda row: offsets[row].as_py())
    rows = rows.slice(begin, end - begin)
    return rows.filter(pc.greater_equal(microseconds(rows), round(since * 1e6))) if since > 0 else rows


def microseconds(rows: pa.Table) -> pa.ChunkedArray:
    return rows["timestamp"].cast(pa.int64())


def registered(rows: pa.Table, stream: str, epoch: str) -> list[Registered]:
    """All rows are of this epoch of this stream, so the two strings are shared."""
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
"""Cached extents of row groups shared by many streams: reading the keys of such a group yields the extents of all of them."""

MAX_BYTES = 16 << 20
"""Payload bytes after which an answer ends at the next row group, even below its message limit."""

BROKEN = (OSError, ValueError, TypeError, LookupError, ArithmeticError, AssertionError, pa.ArrowException)
"""Exceptions of reading a file that is not Parquet, or not of the archive."""

T = TypeVar("T")


class UnreadableFile(OSError):
    """The file exists, but its content is not what was written."""

    def __init__(self, reason: str, path: str) -> None:
        super().__init__(errno.EIO, reason, path)


class File(NamedTuple):
    """One file of the Delta log. Missing statistics are the widest possible range."""

    path: str
    first_stream: str
    last_stream: str
    first_offset: int
    last_offset: int
    last_time: float


FileStamp = tuple[int, int, int]
"""Size and times of a file. Cached data of a file is valid while they are unchanged."""


class Bounds(NamedTuple):
    """Exact bounds of one epoch of a stream within a row group. Its rows are in [begin, end). `alone`: the range has no other
    rows, and they are in order."""

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
    """The files below one root. Footers and extents are cached (LRU)."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._as_written: LruCache[bool] = LruCache(CHECKED)
        self._footers: LruCache[Footer] = LruCache(FOOTERS)
        self._extents: LruCache[tuple[RowGroupExtent, ...]] = LruCache(EXTENTS)
        self._shared: LruCache[dict[tuple[str, str], Bounds]] = LruCache(SHARED, weigh=len)

    def read(self, files: Sequence[File], wanted: HistoryRange) -> ColdPiece:
        """Raises FileNotFoundError for a missing file, and UnreadableFile for a changed one."""
        waiting = sorted(self._in_range(files, wanted), key=lambda extent: extent.bounds.first)
        found: dict[int, Registered] = {}
        for place, extent in enumerate(waiting):
            found |= {message.offset: message for message in self._messages(extent, wanted)}
            following = waiting[place + 1].bounds.first if place + 1 < len(waiting) else None
            if following is not None and _enough(found, wanted.limit, following):
                # Return only messages below the first offset of the row groups not read.
                return ColdPiece(_lowest(found, wanted.limit, following), more=True)
        return ColdPiece(_lowest(found, wanted.limit, None), more=len(found) > wanted.limit)

    def _in_range(self, files: Sequence[File], wanted: HistoryRange) -> Iterator[RowGroupExtent]:
        for file in files:
            if not file.first_stream <= wanted.stream <= file.last_stream or file.last_time < wanted.since:
                continue
            if file.last_offset < wanted.first or file.first_offset > wanted.last:
                continue
            for extent in self._find_extents(file.path, wanted.stream, wanted.epoch):
                has = extent.bounds
                if has.last >= wanted.first and has.first <= wanted.last and has.last_time >= wanted.since:
                    yield extent

    def _find_extents(self, path: str, stream: str, epoch: str) -> tuple[RowGroupExtent, ...]:
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
                # An extent is in order, so the limit is enough. One more row shows whether there are more.
                messages = registered(rows.slice(0, wanted.limit + 1), wanted.stream, wanted.epoch)
                if self._stamp(path) != stamp:
                    raise UnreadableFile("the file changed while it was read", path)
                return messages
        except UnreadableFile:
            # Data read earlier may be wrong too, and the correct file may be restored.
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
            self._extents.forget((extent.path, wanted.stream, wanted.epoch))  # the next read indexes the changed file
        rows = self._group(extent.path, stamp, extent.group, COLUMNS)
        rows = chosen(rows, wanted.stream, wanted.epoch, wanted.first, wanted.last, wanted.since)
        return rows.take(pc.sort_indices(rows["offset"]).slice(0, wanted.limit + 1))

    def _group(self, path: str, stamp: FileStamp, number: int, columns: list[str]) -> pa.Table:
        # The cached footer saves a read at opening. Pre-buffering would use other threads, and waiting for them takes longer
        # than reading the few columns. Names repeat, so they stay dictionary-encoded.
        metadata = self._footer(path, stamp).metadata
        with pa.OSFile(f"{self._root}/{path}") as source:
            file = pq.ParquetFile(source, metadata=metadata, pre_buffer=False, read_dictionary=NAMES)
            rows = file.read_row_group(number, columns=columns, use_threads=False)
            return rows.cast(without_views(rows.schema))

    def _footer(self, path: str, stamp: FileStamp) -> Footer:
        return self._footers.get((path, stamp), lambda: Footer(pq.read_metadata(f"{self._root}/{path}")))

    def _checked(self, path: str) -> FileStamp:
        """Verify the digest of a file before its rows are returned. Finding the right files needs only their footers."""

        def look() -> bool:
            with open(f"{self._root}/{path}", "rb") as file:
                return is_unchanged(path, file)

        stamp = self._stamp(path)
        if not self._as_written.get((path, stamp), look):
            raise UnreadableFile("the file changed after it was written", path)
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
        raise FileNotFoundError(errno.ENOENT, "the file is missing", path) from error
    except BROKEN as error:
        raise UnreadableFile(str(error), path) from error


class LruCache(Generic[T]):
    """A bounded, thread-safe cache. `weigh` returns how much of the limit an entry uses."""

    def __init__(self, limit: int, weigh: Callable[[T], int] = lambda made: 1) -> None:
        self._limit = limit
        self._weigh = weigh
        self._weight = 0
        self._known: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Two threads may compute the same entry at once, which only costs time."""
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
    """The bounds of every stream and epoch in a row group. Rows without an epoch are not publications."""
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
    ready = [message for offset, message in found.items() if offset < following]
    return len(ready) >= limit or (bool(ready) and sum(len(message.payload) for message in ready) >= MAX_BYTES)


def _lowest(found: dict[int, Registered], limit: int, below: int | None) -> tuple[Registered, ...]:
    offsets = sorted(offset for offset in found if below is None or offset < below)
    return tuple(found[offset] for offset in offsets[:limit])

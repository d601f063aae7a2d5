"""Reads history from the archive: the list of files from the Delta log, their row groups, and the journal's tail that is not
archived yet. Worker threads do all reads, never the event loop.

Invariant: one answer comes from one version of the table, followed by the journal from exactly the position where that version
ends. The tail read is bounded; if the tail is longer, the answer has `more` set. Rows that the table lost are read from the
journal while it has them.
"""

import asyncio
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from msgspec.structs import replace

from ropewalk.adapters.archives.parquet_index import BEYOND, File, ParquetIndex, chosen, kept_time, registered
from ropewalk.core.ring import locate_shard
from ropewalk.model.errors import BadRequest, Unavailable
from ropewalk.model.history import ColdPiece, HistoryRange
from ropewalk.model.journal import count_shards, first_kept_span
from ropewalk.model.messages import Registered
from ropewalk.ports import Clock, JournalReader

logger = logging.getLogger("ropewalk.archive")

THREADS = 2
MAX_WAITING = 256
"""Pending reads. Further reads fail at once with Unavailable; the client receives a gap and can retry."""

MAX_LOGGED_FILES = 4096
"""Unreadable files that are logged once each."""


PositionBounds = tuple[int, int]
"""Positions [first, end)."""


class TableState(NamedTuple):
    """One version of the table.

    Attributes:
        files: by shard.
        archived: by shard, the position after the last one of its files.
        unproven: by shard, the positions below `archived` that the files may lack, according to their statistics. Normally the
            journal has removed all of them.
    """

    version: int
    files: dict[int, list[File]]
    archived: dict[int, int]
    unproven: dict[int, list[PositionBounds]]


NOTHING = TableState(-1, {}, {}, {})
_FILE = ("path", "min.stream", "max.stream", "min.offset", "max.offset", "max.timestamp")
_COLUMNS = ("partition.shard", "min.position", "max.position", "num_records", "null_count.timestamp", *_FILE)


class DeltaArchive:
    """Implements `ports.Archive`.

    Args:
        root: directory of the Delta table.
        shards: number of shards without a journal. With a journal, the journal's number is used.
        refresh: maximum age of the cached table version, in seconds.
        journal: where rows that are not archived yet are read.
    """

    def __init__(self, root: str, shards: int, clock: Clock, refresh: float, journal: JournalReader | None = None) -> None:
        self._root = root
        self._shards = shards
        self._clock = clock
        self._refresh = refresh
        self._journal = journal
        self._index = ParquetIndex(Path(root))
        self._table: DeltaTable | None = None
        self._state = NOTHING
        self._looked = float("-inf")
        self._looking = threading.Lock()
        self._pool = ThreadPoolExecutor(THREADS, "archive")
        self._waiting = 0
        self._stopped = False
        self._health = ""
        self._logged: set[str] = set()

    async def stop(self) -> None:
        self._stopped = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def health(self) -> str:
        return self._health

    def gauges(self) -> dict[str, float]:
        return {"archive_files": sum(map(len, self._state.files.values())), "archive_reads_waiting": self._waiting}

    async def read(self, partition_key: str, wanted: HistoryRange) -> ColdPiece:
        wanted = replace(wanted, since=kept_time(wanted.since))
        shard = locate_shard(partition_key, self._shard_count())
        if self._waiting >= MAX_WAITING:
            raise Unavailable("too many reads wait for the archive")
        self._waiting += 1
        try:
            return await self._read(shard, wanted, fresh=False)
        except (OSError, BadRequest):
            # Files were vacuumed, or journal segments removed, since the table was last refreshed.
            return await self._read_again(shard, wanted)
        finally:
            self._waiting -= 1

    async def _read_again(self, shard: int, wanted: HistoryRange) -> ColdPiece:
        try:
            return await self._read(shard, wanted, fresh=True)
        except (OSError, BadRequest) as error:
            self._log(error)
            raise Unavailable(f"the archive cannot be read: {error}") from error

    def _log(self, error: OSError | BadRequest) -> None:
        """Log each unreadable file once: clients retry."""
        if not isinstance(error, OSError) or error.filename is None:
            return
        if error.filename not in self._logged and len(self._logged) < MAX_LOGGED_FILES:
            self._logged.add(error.filename)
            logger.error("a file of the archive cannot be read", extra={"file": error.filename, "reason": error.strerror})

    async def _read(self, shard: int, wanted: HistoryRange, fresh: bool) -> ColdPiece:
        cold, archived, unproven = await self._read_files(shard, wanted, fresh)
        reached = cold.messages[-1].offset if cold.messages else wanted.first - 1
        if self._journal is None:
            return cold
        if cold.more or reached >= wanted.last:
            return await fill_holes(cold, self._journal, shard, unproven, wanted)
        if not fresh and begins_after(self._journal, shard, archived):
            return await self._read(shard, wanted, fresh=True)  # the rows in between are archived by now, or lost
        rest = replace(wanted, first=reached + 1, limit=wanted.limit - len(cold.messages))
        tail = await read_tail(self._journal, shard, archived, rest)
        joined = await fill_holes(ColdPiece(cold.messages + tail.messages, tail.more), self._journal, shard, unproven, wanted)
        if joined.more and not joined.messages:
            raise Unavailable("the archive is too far behind the journal to read this stream")
        return joined

    async def _read_files(self, shard: int, wanted: HistoryRange, fresh: bool) -> tuple[ColdPiece, int, list[PositionBounds]]:
        if self._stopped:
            raise Unavailable("the archive is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._cold, shard, wanted, fresh)
        except asyncio.CancelledError:
            # Shutting the pool down cancels pending reads but not their callers, which need an error.
            task = asyncio.current_task()
            if not self._stopped or (task is not None and task.cancelling()):
                raise
            raise Unavailable("the archive is closed") from None

    def _shard_count(self) -> int:
        return (count_shards(self._journal.spans()) if self._journal else 0) or self._shards

    def _cold(self, shard: int, wanted: HistoryRange, fresh: bool) -> tuple[ColdPiece, int, list[PositionBounds]]:
        state = self._current(fresh)
        cold = self._index.read(state.files.get(shard, ()), wanted)
        return cold, state.archived.get(shard, 0), state.unproven.get(shard, [])

    # --- the table ----------------------------------------------------------------------------------------------------

    def _current(self, fresh: bool) -> TableState:
        with self._looking:
            if fresh or self._clock() - self._looked >= self._refresh:
                self._look()
            if self._health and self._state is NOTHING:
                raise Unavailable(self._health)  # the table exists, and no version of it could be read
            return self._state

    def _look(self) -> None:
        """Refresh the table. If that fails, the last version stays in use: its files are still valid."""
        try:
            self._state = self._newest()
            self._health = ""
        except (DeltaError, OSError) as error:
            self._health = f"the archive's table cannot be read: {error}"
            logger.warning("the archive's table cannot be read", extra={"reason": str(error)})
        self._looked = self._clock()

    def _newest(self) -> TableState:
        if self._table is None:
            if not DeltaTable.is_deltatable(self._root):
                return NOTHING  # nothing was archived yet
            self._table = DeltaTable(self._root)
        else:
            self._table.update_incremental()
        version = self._table.version()
        return self._state if version == self._state.version else _state(version, pa.table(self._table.get_add_actions(True)))


def _state(version: int, files: pa.Table) -> TableState:
    by_shard: dict[int, list[File]] = {}
    archived: dict[int, int] = {}
    proven: dict[int, list[PositionBounds]] = {}
    for shard, first, last, rows, timeless, *file in zip(*(_column(files, name) for name in _COLUMNS), strict=True):
        by_shard.setdefault(shard, []).append(_file(*file))
        archived[shard] = max(archived.get(shard, 0), last + 1)
        if rows == last + 1 - first and timeless == 0:  # dense, and without rows that stand for lost ones
            proven.setdefault(shard, []).append((first, last + 1))
    unproven = {shard: _between(proven.get(shard, []), end) for shard, end in archived.items()}
    return TableState(version, by_shard, archived, unproven)


def _between(runs: list[PositionBounds], end: int) -> list[PositionBounds]:
    """The positions below `end` that are in none of the runs."""
    found: list[PositionBounds] = []
    reached = 0
    for first, stop in sorted([*runs, (end, end)]):
        if first > reached:
            found.append((reached, first))
        reached = max(reached, stop)
    return found


def _column(files: pa.Table, name: str) -> list[Any]:
    if name not in files.column_names:
        return [None] * len(files)  # no file has this statistic
    column = files[name].cast(pa.int64()) if name == "max.timestamp" else files[name]
    values: list[Any] = column.to_pylist()
    return values


def _file(path: str, low: str | None, high: str | None, first: int | None, last: int | None, until: int | None) -> File:
    """Missing statistics become the widest possible range."""
    return File(
        unquote(path),
        low or "",
        BEYOND if high is None else high,
        0 if first is None else first,
        2**63 - 1 if last is None else last,
        float("inf") if until is None else until / 1e6,
    )


# --- the tail: rows in the journal that are not archived yet ---------------------------------------------------------

PIECE_BYTES = 4 << 20
TAIL_BYTES = 64 << 20
"""Journal bytes that one request may read. The archive lags by seconds, so the tail is usually far shorter."""


def begins_after(journal: JournalReader, shard: int, position: int) -> bool:
    """Whether retention has removed the row at this position from the journal."""
    oldest = first_kept_span([span for span in journal.spans() if span.shard == shard])
    return oldest is not None and oldest.first > position


async def read_tail(journal: JournalReader, shard: int, begin: int, wanted: HistoryRange) -> ColdPiece:
    """Messages at positions from `begin` on, each once. Skips holes of the journal; the caller must detect them. May return no
    message and still set `more`. Raises BadRequest if retention removes the rows meanwhile."""
    found: list[Registered] = []
    budget, position, refused = TAIL_BYTES, begin, -1
    while not _complete(found, wanted):
        spans = [span for span in journal.spans() if span.shard == shard and span.end > max(position, span.first)]
        if not spans:
            break
        if budget <= 0:
            return ColdPiece(tuple(found), more=True)
        position = max(position, spans[0].first)
        data = b"".join([piece async for piece in journal.read(shard, position, spans[0].end, min(budget, PIECE_BYTES))])
        rows, reached = await asyncio.to_thread(_sift, data, position, wanted)
        found += _new(rows, found[-1].offset if found else 0)
        budget -= len(data)
        if reached == position == refused:
            raise BadRequest(f"the journal lists position {position} of shard {shard} but returns no row")
        # No rows: damage was found just now. The spans include it at the next look.
        refused = position if reached == position else -1
        position = reached
    return ColdPiece(tuple(found[: wanted.limit]), more=len(found) > wanted.limit)


# --- holes: rows that another tool deleted from the table --------------------------------------------------------------


async def fill_holes(
    piece: ColdPiece, journal: JournalReader, shard: int, unproven: Sequence[PositionBounds], wanted: HistoryRange
) -> ColdPiece:
    """Add messages that are missing in `piece` and that the journal has at the `unproven` positions. Raises BadRequest if
    retention removes the rows meanwhile."""
    spans = [span for span in journal.spans() if span.shard == shard]
    runs = [(max(first, span.first), min(end, span.end)) for first, end in unproven for span in spans]
    runs = [(first, end) for first, end in runs if first < end]
    missing = _missing_offsets(piece, wanted) if runs else None
    if missing is None:
        return piece
    found = {message.offset: message for message in await _read_runs(journal, shard, runs, missing)}
    found |= {message.offset: message for message in piece.messages}
    messages = tuple(found[offset] for offset in sorted(found))
    return ColdPiece(messages[: wanted.limit], piece.more or len(messages) > wanted.limit)


def _missing_offsets(piece: ColdPiece, wanted: HistoryRange) -> HistoryRange | None:
    """The range from the first to the last offset that `piece` lacks. Behind its end only if it claims to be complete."""
    offsets = [message.offset for message in piece.messages]
    ends = [] if piece.more else [wanted.last + 1]
    before = [wanted.first - 1, *offsets]
    holes = [(low + 1, high - 1) for low, high in zip(before, [*offsets, *ends], strict=False) if high > low + 1]
    return replace(wanted, first=holes[0][0], last=holes[-1][1]) if holes else None


async def _read_runs(
    journal: JournalReader, shard: int, runs: Sequence[PositionBounds], wanted: HistoryRange
) -> list[Registered]:
    """Messages at these positions, from TAIL_BYTES of the journal at most."""
    found: list[Registered] = []
    budget = TAIL_BYTES
    for position, end in runs:
        while position < end and budget > 0:
            data = b"".join([piece async for piece in journal.read(shard, position, end, min(budget, PIECE_BYTES))])
            rows, reached = await asyncio.to_thread(_sift, data, position, wanted)
            found += rows
            budget -= len(data)
            if reached == position:
                break  # damage was found just now
            position = reached
    return found


def _complete(found: list[Registered], wanted: HistoryRange) -> bool:
    return bool(found) and (found[-1].offset >= wanted.last or len(found) > wanted.limit)


def _new(messages: Iterable[Registered], last: int) -> Iterator[Registered]:
    """Drop duplicates: rows may have been written to the journal twice."""
    for message in messages:
        if message.offset > last:
            last = message.offset
            yield message


def _sift(data: bytes, position: int, wanted: HistoryRange) -> tuple[list[Registered], int]:
    """The messages from `position` on, and the position after the last row (`position` itself without rows)."""
    with pa.ipc.open_stream(data) as stream:
        rows = stream.read_all()
    rows = rows.filter(pc.greater_equal(rows["position"], position))  # it may begin earlier, with a whole batch
    if not rows.num_rows:
        return [], position
    found = chosen(rows, wanted.stream, wanted.epoch, wanted.first, wanted.last, wanted.since)
    return registered(found, wanted.stream, wanted.epoch), rows["position"][-1].as_py() + 1

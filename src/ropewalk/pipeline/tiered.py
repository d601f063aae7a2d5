"""The archive as the source's cold end: rows of a shard by exact positions, out of the files that its table names.

The directory is never listed: it may hold files of failed attempts and of compactions that were not committed. A file that is
not as it was written gives no rows.
"""

import datetime
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import ShardSpan
from ropewalk.pipeline.checked import DamagedFile, read_file
from ropewalk.pipeline.journal_client import JournalClient, JournalRefused
from ropewalk.pipeline.offsets import Spans

if TYPE_CHECKING:
    from deltalake import DeltaTable


ANYWHERE = 2**63 - 1


class ArchiveFile(Struct, frozen=True):
    """One file of the table, as its statistics describe it: `rows` rows of a shard at positions in [first, end), not always
    dense. Without statistics the range is as wide as possible. `gaps`:
    there may be rows without a time, which stand for lost ones."""

    path: str
    shard: int
    date: str
    first: int
    end: int
    rows: int
    size: int
    gaps: bool = True

    @property
    def dense(self) -> bool:
        return self.rows == self.end - self.first and not self.gaps


class ArchiveTable:
    """The table as it is when this is made. Where a file of it was compacted and vacuumed away since, it is opened again: the
    same rows are in other files then.

    A damaged file is passed to `damaged` and skipped; without that callback, DamagedFile is raised.
    """

    def __init__(self, root: str, damaged: Callable[[DamagedFile], None] | None = None) -> None:
        self._root = root
        self._damaged = damaged
        self._version = -1
        self._files: list[ArchiveFile] = []
        self._open_newer()

    def first(self, shard: int) -> int | None:
        """The oldest position of a shard; None if there is nothing of it."""
        return min((file.first for file in self._files if file.shard == shard), default=None)

    def rows(self, shard: int, first: int, end: int, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """What the archive has of [first, end), in order of position. `columns`, among them `position`; None takes all."""
        reached = first
        while True:
            try:
                for group in self._groups(shard, reached, end):
                    tables = [table for file in group for table in self._read(file, reached, end, columns)]
                    if tables and (table := pa.concat_tables(tables).sort_by("position")).num_rows:
                        yield table
                        reached = table["position"][-1].as_py() + 1
                return
            except FileNotFoundError:
                if not self._open_newer():
                    raise

    def first_since(self, shard: int, timestamp: int) -> int | None:
        """The first position that was registered at or after `timestamp` (milliseconds)."""
        moment = datetime.datetime.fromtimestamp(timestamp / 1000, datetime.UTC)
        while True:
            later = [file for file in self._files if file.shard == shard and file.date >= moment.date().isoformat()]
            try:
                firsts = [pc.min(self._since(file, moment).column("position")).as_py() for file in later]
            except FileNotFoundError:
                if not self._open_newer():
                    raise
            else:
                return min((first for first in firsts if first is not None), default=None)

    def _open_newer(self) -> bool:
        """Whether the table has changed since it was opened before."""
        # Loaded here because most readers of the journal never come here.
        from deltalake import DeltaTable

        table = DeltaTable(self._root) if DeltaTable.is_deltatable(self._root) else None
        if table is None or table.version() == self._version:
            return False
        self._version, self._files = table.version(), archive_files(table)
        return True

    def _groups(self, shard: int, first: int, end: int) -> Iterator[list[ArchiveFile]]:
        return _overlapping([file for file in self._files if file.shard == shard and file.first < end and file.end > first])

    def _read(self, file: ArchiveFile, first: int, end: int, columns: list[str] | None) -> Iterator[pa.Table]:
        inside = (pc.field("position") >= first) & (pc.field("position") < end)
        try:
            yield read_file(self._root, file.path, columns=columns, rows=inside)
        except DamagedFile as error:
            if self._damaged is None:
                raise
            self._damaged(error)

    def _since(self, file: ArchiveFile, moment: datetime.datetime) -> pa.Table:
        return read_file(self._root, file.path, columns=["position"], rows=pc.field("timestamp") >= moment)


def archive_files(table: "DeltaTable") -> list[ArchiveFile]:
    """What the table names now. Raises UserMistake if some of the rows in these files are deleted."""
    if _has_deletion_vectors(table):
        raise UserMistake(
            f"the archive {table.table_uri} has deletion vectors, which are not supported: run REORG TABLE … APPLY (PURGE) on "
            "it in Spark, and set its property delta.enableDeletionVectors to false"
        )
    actions: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return [
        ArchiveFile(
            unquote(action["path"]),
            int(action["partition.shard"]),
            str(action["partition.date"]),
            0 if (first := action.get("min.position")) is None else first,
            ANYWHERE if (last := action.get("max.position")) is None else last + 1,
            action.get("num_records") or 0,
            action["size_bytes"],
            action.get("null_count.timestamp") != 0,
        )
        for action in actions
    ]


def _has_deletion_vectors(table: "DeltaTable") -> bool:
    """The statistics of a file count its deleted rows too, and no reader of the archive leaves them out."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return False
    from deltalake.exceptions import DeltaError

    try:
        return any(batch.num_rows for batch in table.deletion_vectors())
    except DeltaError:  # there is one, and it cannot be read
        return True


def _overlapping(files: list[ArchiveFile]) -> Iterator[list[ArchiveFile]]:
    """Files whose positions interleave have to be read together; all others one after another."""
    group: list[ArchiveFile] = []
    for file in sorted(files, key=lambda file: file.first):
        if group and file.first >= max(known.end for known in group):
            yield group
            group = []
        group.append(file)
    if group:
        yield group


WINDOW_ROWS = 4096
WINDOW_BYTES = 1 << 16
LAST = 1 << 62
"""Behind all rows that are there: lost by damage, or never written."""


class RowTimes:
    """As the journal is while one batch is planned."""

    def __init__(self, client: JournalClient, archive: str, spans: Spans) -> None:
        self._client = client
        self._root = archive
        self._spans = spans
        self._known: dict[tuple[int, int], int] = {}

    def at(self, shard: int, position: int) -> int:
        """Microseconds of the row at a position of a shard."""
        if (shard, position) not in self._known:
            self._known[shard, position] = self._asked(shard, position)
        return self._known[shard, position]

    def _asked(self, shard: int, position: int) -> int:
        span = _reaching(self._spans[shard], position)
        if position < (LAST if span is None else span.first):
            for table in self._archived(shard, position, LAST if span is None else span.first):
                return self._note(shard, table)
        return LAST if span is None else self._registered(shard, max(position, span.first), span.end)

    def _archived(self, shard: int, first: int, end: int) -> list[pa.Table]:
        """The beginning of what the archive has of a range, if anything."""
        if self._archive is None:
            return []
        for stop in (min(first + WINDOW_ROWS, end), end):
            for table in self._archive.rows(shard, first, stop, ["position", "timestamp"]):
                return [table]
        return []

    def _registered(self, shard: int, first: int, end: int) -> int:
        try:
            table = self._client.read(shard, first, min(first + WINDOW_ROWS, end), WINDOW_BYTES)
        except JournalRefused:  # retention has overtaken us: it was among the oldest
            return 0
        return self._note(shard, table) if table.num_rows else 0

    def _note(self, shard: int, table: pa.Table) -> int:
        """Returns the time of the first row."""
        positions = table.column("position").to_pylist()
        times = table.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
        self._known |= {(shard, position): time for position, time in zip(positions, times, strict=True)}
        first: int = times[0]
        return first

    @cached_property
    def _archive(self) -> ArchiveTable | None:
        return ArchiveTable(self._root) if self._root else None


def _reaching(own: Sequence[ShardSpan], position: int) -> ShardSpan | None:
    """The first span that has this row or later ones."""
    return next((span for span in own if position < span.end and span.first < span.end), None)

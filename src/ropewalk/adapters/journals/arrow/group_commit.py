"""Group commit: the rows handed over so far are written to their shards together, all of them or none.

Invariant: a group counts once all its bytes are written (and synced, if requested) and the commit log has its entry. Until
then no reader sees it, and after a failure its bytes are truncated. Called by one thread only.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ropewalk.adapters.journals.arrow.commit_log import CommitLog
from ropewalk.adapters.journals.arrow.disk import Disk
from ropewalk.adapters.journals.arrow.frames import frame_batch
from ropewalk.adapters.journals.arrow.logs import ShardLog
from ropewalk.adapters.journals.arrow.schema import encode
from ropewalk.core.ring import shard_of
from ropewalk.model.journal import Row
from ropewalk.ports import Clock

BATCH_ROWS = 8192
"""Rows of one batch: readers take whole ones, so that a huge group must not become a huge batch."""


class Rolling(Struct, frozen=True):
    """When a segment is full, and whether writing is followed by fsync."""

    segment_bytes: int
    segment_seconds: float
    sync: bool


class FramedBatch(Struct, frozen=True, gc=False):
    """One framed batch on its way to its shard."""

    data: bytes
    rows: int
    newest: int


class GroupCommit:
    def __init__(
        self,
        directory: Path,
        logs: list[ShardLog],
        commit_log: CommitLog,
        group: int,
        rolling: Rolling,
        disk: Disk,
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._logs = logs
        self._commit_log = commit_log
        self._rolling = rolling
        self._disk = disk
        self._clock = clock
        self._syncers = ThreadPoolExecutor(4, "journal-sync") if rolling.sync else None
        self._untidy: list[ShardLog] = []
        self.group = group
        self.groups = 0
        self.rows = 0

    def commit(self, rows: Sequence[Row]) -> list[ShardLog]:
        """Write them. Answers the shards that began a new segment. Raises OSError, and then none of them counts."""
        self._tidy()
        by_shard = self._by_shard(rows)
        rolled = self._roll(by_shard)
        pieces = self._encode(by_shard)
        ends = {log.shard: log.active.end + sum(piece.rows for piece in of_shard) for log, of_shard in pieces}
        try:
            self._write(pieces)
            self._commit_log.add(self.group + 1, ends)
        except OSError:
            self._undo(pieces)
            raise
        self._count(pieces, len(rows))
        return rolled

    def close(self) -> None:
        if self._syncers is not None:
            self._syncers.shutdown()

    def _by_shard(self, rows: Sequence[Row]) -> dict[int, list[Row]]:
        shards = len(self._logs)
        if len(rows) == 1:
            return {shard_of(rows[0].key, shards): list(rows)}
        by_shard: dict[int, list[Row]] = {}
        for row in rows:
            by_shard.setdefault(shard_of(row.key, shards), []).append(row)
        return by_shard

    def _roll(self, by_shard: dict[int, list[Row]]) -> list[ShardLog]:
        now = self._clock()
        rolled = []
        if self._commit_log.full:
            self._commit_log.begin(self.group, {log.shard: log.active.end for log in self._logs})
        for shard in by_shard:
            log = self._logs[shard]
            if self._full(log, now):
                log.grow(self._directory, self._disk, self._rolling.sync)
                rolled.append(log)
            if not log.active.rows or not log.began:
                log.began = now
        return rolled

    def _full(self, log: ShardLog, now: float) -> bool:
        if not log.active.rows:
            return False
        old = log.began > 0 and now - log.began >= self._rolling.segment_seconds
        return old or log.active.size >= self._rolling.segment_bytes

    def _encode(self, by_shard: dict[int, list[Row]]) -> list[tuple[ShardLog, list[FramedBatch]]]:
        members = sum(-(-len(rows) // BATCH_ROWS) for rows in by_shard.values())
        return [(self._logs[shard], self._pieces(shard, rows, members)) for shard, rows in by_shard.items()]

    def _pieces(self, shard: int, rows: list[Row], members: int) -> list[FramedBatch]:
        pieces, first = [], self._logs[shard].active.end
        for at in range(0, len(rows), BATCH_ROWS):
            some = rows[at : at + BATCH_ROWS]
            batch, newest = encode(some, first + at)
            data = frame_batch(batch, shard, first + at, newest, self.group + 1, members)
            pieces.append(FramedBatch(data, len(some), newest))
        return pieces

    def _write(self, pieces: list[tuple[ShardLog, list[FramedBatch]]]) -> None:
        for log, of_shard in pieces:
            data = of_shard[0].data if len(of_shard) == 1 else b"".join(piece.data for piece in of_shard)
            self._disk.write(log.fd, data, log.active.size)
        if self._syncers is None:
            return
        if len(pieces) == 1:
            self._disk.sync(pieces[0][0].fd)
        else:
            list(self._syncers.map(self._disk.sync, [log.fd for log, _ in pieces]))

    def _undo(self, pieces: list[tuple[ShardLog, list[FramedBatch]]]) -> None:
        self._untidy = [log for log, _ in pieces]
        with suppress(OSError):
            self._tidy()
        with suppress(OSError):
            self._commit_log.undo()

    def _tidy(self) -> None:
        """Truncate what a failed group left, before anything else is written. Otherwise whole batches of that group could stay
        behind the end of the log, and a recovery that searches behind damaged bytes could take them for committed ones."""
        while self._untidy:
            log = self._untidy[-1]
            self._disk.truncate(log.fd, log.active.size)
            self._untidy.pop()

    def _count(self, pieces: list[tuple[ShardLog, list[FramedBatch]]], rows: int) -> None:
        for log, of_shard in pieces:
            for piece in of_shard:
                log.active.add(len(piece.data), piece.rows, piece.newest)
        self.group += 1
        self.groups += 1
        self.rows += rows

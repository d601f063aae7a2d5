"""Group commit: the event loop queues rows for the writer thread, which writes all queued rows to their shards as one group,
all or nothing.

Invariant: a group counts once all its bytes are written (and synced, if requested) and the commit log has its entry. Until
then no reader sees it, and after a failure its bytes are truncated. Rows queued while a group is written go into the next
group, in order. The queue is bounded: when it is full, acknowledged writes are refused, and other rows are dropped and counted.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread

from msgspec import Struct

from ropewalk.adapters.journals.arrow.batches import encode, frame_batch
from ropewalk.adapters.journals.arrow.logs import ShardLog
from ropewalk.adapters.journals.arrow.records import CommitLog, Disk
from ropewalk.core.ring import locate_shard
from ropewalk.model.errors import Unavailable
from ropewalk.model.journal import Row
from ropewalk.ports import Clock

BATCH_ROWS = 8192
"""Maximum rows of one batch. Readers read whole batches, so a large group must not become a large batch."""


class Rolling(Struct, frozen=True):
    """When a segment is full, and whether writing is followed by fsync."""

    segment_bytes: int
    segment_seconds: float
    sync: bool
    clock: Clock


class FramedBatch(Struct, frozen=True, gc=False):
    """One framed batch on its way to its shard."""

    data: bytes
    rows: int
    newest: int


class GroupCommit:
    """Called by one thread only."""

    def __init__(
        self,
        directory: Path,
        logs: list[ShardLog],
        commit_log: CommitLog,
        group: int,
        rolling: Rolling,
        disk: Disk,
    ) -> None:
        self._directory = directory
        self._logs = logs
        self._commit_log = commit_log
        self._rolling = rolling
        self._disk = disk
        self._syncers = ThreadPoolExecutor(4, "journal-sync") if rolling.sync else None
        self._untidy: list[ShardLog] = []
        self.group = group
        self.groups = 0
        self.rows = 0

    def commit(self, rows: Sequence[Row]) -> list[ShardLog]:
        """Write the rows. Returns the shards that began a new segment. On OSError none of the rows counts."""
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
            return {locate_shard(rows[0].key, shards): list(rows)}
        by_shard: dict[int, list[Row]] = {}
        for row in rows:
            by_shard.setdefault(locate_shard(row.key, shards), []).append(row)
        return by_shard

    def _roll(self, by_shard: dict[int, list[Row]]) -> list[ShardLog]:
        now = self._rolling.clock()
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
        """Truncate the bytes of a failed group before the next write. Otherwise complete batches of that group could remain
        after the end of the log, and a recovery that searches past damaged bytes could take them for committed ones."""
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


# --- the writer's thread ---------------------------------------------------------------------------------------------

logger = logging.getLogger("ropewalk.journal")

GROUP_BYTES = 4 * 1024 * 1024
"""Approximate size limit of a group, so that the first of many rows is acknowledged before the last is written."""

ROW_BYTES = 256
"""Approximate size of a row besides its value and detail."""

RETRY = 1.0
"""Seconds between retries while writes fail."""

WriteFuture = asyncio.Future[None]


class Handed(Struct, frozen=True):
    """Rows of one call, and the future that acknowledges them, if any."""

    rows: Sequence[Row]
    size: int
    answer: WriteFuture | None


class Writer:
    """The queue and the thread that commits it.

    Args:
        probe: raises OSError while writes still fail.
        rolled: called with the shards that began a new segment.
    """

    def __init__(
        self,
        commit: GroupCommit,
        queue_bytes: int,
        probe: Callable[[], None],
        rolled: Callable[[list[ShardLog]], None],
    ) -> None:
        self._commit = commit
        self._queue_bytes = queue_bytes
        self._probe = probe
        self._rolled = rolled
        self._queue: deque[Handed] = deque()
        self._changed = Condition()
        self._thread = Thread(target=self._run, name="journal-writer", daemon=True)
        self._waiting = 0  # queued items with a future
        self._size = 0
        self._stopping = False
        self.queued_rows = 0
        self.dropped_rows = 0
        self.refused_groups = 0
        self.failure = ""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write all queued rows, then end. Blocks."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def hand_over(self, rows: Sequence[Row], answer: WriteFuture | None = None) -> bool:
        """Queue the rows. False if the queue is full. An item larger than the queue is accepted when the queue is empty."""
        size = sum([len(row.value) + len(row.detail) for row in rows]) + ROW_BYTES * len(rows)
        with self._changed:
            if self._stopping or (self._size and self._size + size > self._queue_bytes):
                return False
            self._put(Handed(rows, size, answer))
            self._changed.notify()
        return True

    def drop(self, rows: Sequence[Row], why: str) -> None:
        """Count dropped rows. Only the first is logged; a metric counts them all."""
        if not self.dropped_rows:
            logger.error("rows are dropped from the journal: %s", why)
        self.dropped_rows += len(rows)

    # --- on the writer's thread ---

    def _run(self) -> None:
        while True:
            handed = self._take()
            if handed:
                self._write(handed)
            elif self._stopping:
                return
            else:
                self._try_again()

    def _take(self) -> list[Handed]:
        with self._changed:
            while not self._queue and not self._stopping:
                if not self._changed.wait(RETRY if self.failure else None):
                    return []
            handed: list[Handed] = []
            size = 0
            while self._queue and (not handed or size + self._queue[0].size <= GROUP_BYTES):
                handed.append(self._get())
                size += handed[-1].size
            return handed

    def _write(self, handed: list[Handed]) -> None:
        rows = handed[0].rows if len(handed) == 1 else [row for each in handed for row in each.rows]
        try:
            rolled = self._commit.commit(rows)
        except OSError as error:
            self._refused(handed, f"the journal cannot be written: {error.strerror or error}")
        except Exception as error:  # the edge of the thread: one row that cannot be encoded must not end the journal
            self._sort_out(handed, error)
        else:
            self._written(handed, rolled)

    def _written(self, handed: list[Handed], rolled: list[ShardLog]) -> None:
        if self.failure:
            self._recovered()
        _resolve(handed, None)
        if rolled:
            self._rolled(rolled)

    def _refused(self, handed: list[Handed], failure: str) -> None:
        if not self.failure:
            logger.error("%s", failure)
        self.failure = failure
        self.refused_groups += 1
        _resolve(handed, Unavailable(failure))
        kept = [each for each in handed if each.answer is None]
        with self._changed:
            if not self._stopping:
                for each in reversed(kept):
                    self._put(each, again=True)
                # Retry at once for a row with a future; other rows wait until the disk works.
                self._changed.wait_for(lambda: self._waiting or self._stopping, RETRY)
                return
        for each in kept:
            self.drop(each.rows, failure)

    def _sort_out(self, handed: list[Handed], error: Exception) -> None:
        if len(handed) > 1:
            for each in handed:
                self._write([each])
            return
        logger.error("rows cannot be written to the journal", exc_info=error)
        _resolve(handed, Unavailable(f"the journal cannot record this: {error}"))
        if handed[0].answer is None:
            self.drop(handed[0].rows, str(error))

    def _try_again(self) -> None:
        try:
            self._probe()
        except OSError as error:
            self.failure = f"the journal cannot be written: {error.strerror or error}"
        else:
            self._recovered()

    def _recovered(self) -> None:
        logger.info("the journal can be written again")
        self.failure = ""

    # --- the queue, under its lock ---

    def _put(self, handed: Handed, again: bool = False) -> None:
        (self._queue.appendleft if again else self._queue.append)(handed)
        self._size += handed.size
        self.queued_rows += len(handed.rows)
        self._waiting += handed.answer is not None

    def _get(self) -> Handed:
        handed = self._queue.popleft()
        self._size -= handed.size
        self.queued_rows -= len(handed.rows)
        self._waiting -= handed.answer is not None
        return handed


def _resolve(handed: list[Handed], error: Exception | None) -> None:
    answers = [each.answer for each in handed if each.answer is not None]
    if answers:
        with suppress(RuntimeError):  # the event loop was closed
            answers[0].get_loop().call_soon_threadsafe(_answer, answers, error)


def _answer(answers: list[WriteFuture], error: Exception | None) -> None:
    for answer in answers:
        if answer.done():
            continue
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)

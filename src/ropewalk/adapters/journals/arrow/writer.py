"""Hands rows from the event loop to the one writer thread, and results back.

Invariant: rows handed over while a group is written go into the next group, in order. The queue is bounded: when it is full,
callers that wait for the write are refused, and rows that nobody waits for are dropped and counted.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition, Thread

from msgspec import Struct

from ropewalk.adapters.journals.arrow.group_commit import GroupCommit
from ropewalk.adapters.journals.arrow.logs import ShardLog
from ropewalk.model.errors import Unavailable
from ropewalk.model.journal import Row

log = logging.getLogger("ropewalk.journal")

GROUP_BYTES = 4 * 1024 * 1024
"""What one group takes of the queue, at the most and roughly, so that the first of many is not answered after the last."""

ROW_BYTES = 256
"""What a row takes besides its value and detail, roughly."""

RETRY = 1.0
"""Seconds between attempts while the disk refuses."""

WriteFuture = asyncio.Future[None]


class Handed(Struct, frozen=True):
    """Rows that go together, and who waits for them."""

    rows: Sequence[Row]
    size: int
    answer: WriteFuture | None


class Writer:
    """`probe` raises OSError while the disk still refuses; `rolled` is told of shards that began a new segment."""

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
        self._waiting = 0  # hand-overs in the queue that somebody waits for
        self._size = 0
        self._stopping = False
        self.queued_rows = 0
        self.dropped_rows = 0
        self.refused_groups = 0
        self.failure = ""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, then end. Blocks."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def hand_over(self, rows: Sequence[Row], answer: WriteFuture | None = None) -> bool:
        """False if there is no room. One that would be too large even for an empty queue is taken when it is empty."""
        size = sum([len(row.value) + len(row.detail) for row in rows]) + ROW_BYTES * len(rows)
        with self._changed:
            if self._stopping or (self._size and self._size + size > self._queue_bytes):
                return False
            self._put(Handed(rows, size, answer))
            self._changed.notify()
        return True

    def drop(self, rows: Sequence[Row], why: str) -> None:
        """Count what is not recorded; the first of many is said, the others are in the metrics."""
        if not self.dropped_rows:
            log.error("rows are missing in the journal from now on: %s", why)
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
        _tell(handed, None)
        if rolled:
            self._rolled(rolled)

    def _refused(self, handed: list[Handed], failure: str) -> None:
        if not self.failure:
            log.error("%s", failure)
        self.failure = failure
        self.refused_groups += 1
        _tell(handed, Unavailable(failure))
        kept = [each for each in handed if each.answer is None]
        with self._changed:
            if not self._stopping:
                for each in reversed(kept):
                    self._put(each, again=True)
                # Whoever waits for an answer is worth an attempt at once, the others can wait for the disk.
                self._changed.wait_for(lambda: self._waiting or self._stopping, RETRY)
                return
        for each in kept:
            self.drop(each.rows, failure)

    def _sort_out(self, handed: list[Handed], error: Exception) -> None:
        if len(handed) > 1:
            for each in handed:
                self._write([each])
            return
        log.error("rows that cannot be recorded", exc_info=error)
        _tell(handed, Unavailable(f"the journal cannot record this: {error}"))
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
        log.info("the journal can be written again")
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


def _tell(handed: list[Handed], error: Exception | None) -> None:
    answers = [each.answer for each in handed if each.answer is not None]
    if answers:
        with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
            answers[0].get_loop().call_soon_threadsafe(_answer, answers, error)


def _answer(answers: list[WriteFuture], error: Exception | None) -> None:
    for answer in answers:
        if answer.done():
            continue
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)

"""The journal of a cluster: one node records what all nodes registered.

Invariant: a publication is in the journal once, under the position that clients see. It leaves the store's record queue only
after it is written, and rows that are read twice are recognised by their position. While no node records, nothing is lost as
long as the queue is not full.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from ropewalk.core.backoff import Backoff, Chance
from ropewalk.engine.session_log import JournalSessionLog
from ropewalk.model.errors import Unavailable
from ropewalk.model.journal import QueuedRows, Recovered, Restored, Row, RowKind
from ropewalk.model.messages import Position, RemoteDisconnect
from ropewalk.ports import Clock, Journal, RecordQueue

logger = logging.getLogger("ropewalk.journal")

CLAIM_SECONDS = 10.0
"""Lifetime of a claim: after a crash of the recorder another node can take over."""

MAX_READ_ROWS = 1000
PAUSE_SECONDS = 0.05
"""Pause between two reads of an empty queue."""

BETWEEN_TRIES = Backoff(0.1, 2.0)

ANOTHER_RECORDS = "another node records what is registered; this one waits until that ends (start it without --data_dir)"


class Recorder:
    """Moves rows from the record queue into the journal: `recover`, `start` once both are started, `stop` before them."""

    def __init__(self, queue: RecordQueue, journal: Journal, clock: Clock, chance: Chance) -> None:
        self._queue = queue
        self._journal = journal
        self._clock = clock
        self._chance = chance
        self._recorded: dict[str, Position] = {}
        self._claimed_until = 0.0
        self._running: asyncio.Task[None] | None = None
        self._problem = "recording has not started yet"
        self.missing = 0
        """Publications that a full queue has dropped, counted when a later one of their stream is read."""

    def recover(self, recovered: Recovered, sessions_ttl: float, presence_ttl: float) -> Restored:
        """Load the recorded tip of each stream. Streams and sessions themselves are in the store."""
        for tip in recovered.tips:
            self._recorded[tip.stream] = Position(tip.epoch, tip.tip)
        return Restored(len(self._recorded), 0, 0, [])

    async def start(self) -> None:
        """Claim the record queue and start recording. If the store is down or another node records, recording starts later."""
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(CLAIM_SECONDS / 2):
                await self._claim()
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Record the rest of the queue, with a timeout."""
        if self._running is None:
            return
        self._running.cancel()
        await asyncio.wait([self._running])
        try:
            async with asyncio.timeout(CLAIM_SECONDS / 2):
                while await self.record():
                    pass
        except (Unavailable, TimeoutError) as error:
            logger.warning("rows are left in the record queue for the next start", extra={"reason": str(error)})

    def health(self) -> str:
        return self._journal.health() or self._problem

    def gauges(self) -> dict[str, float]:
        return {**self._journal.gauges(), "journal_missing_rows": self.missing}

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                moved = await self.record()
            except Unavailable:
                await asyncio.sleep(BETWEEN_TRIES.delay(failures, self._chance))
                failures += 1
                continue
            except Exception:
                logger.exception("recording failed")
                await asyncio.sleep(BETWEEN_TRIES.cap)
                continue
            failures = 0
            if moved < MAX_READ_ROWS:
                await asyncio.sleep(PAUSE_SECONDS)

    async def record(self) -> int:
        """Move up to `MAX_READ_ROWS` rows to the journal. Returns their number. Raises `Unavailable`."""
        try:
            if not await self._claim():
                return 0
            moved = await self._move()
        except Unavailable as error:
            self._problem = f"publications are not recorded: {error}"
            raise
        self._problem = ""
        return moved

    async def _move(self) -> int:
        piece = await self._queue.read(MAX_READ_ROWS)
        new, reached = self._new(piece.rows)
        if new:
            await self._journal.write(new)
        self._recorded.update(reached)
        if piece.rows:
            await self._remove(piece)
        return len(piece.rows)

    async def _claim(self) -> bool:
        now = self._clock()
        if now + CLAIM_SECONDS / 2 < self._claimed_until:
            return True
        if await self._queue.claim(CLAIM_SECONDS):
            self._claimed_until = now + CLAIM_SECONDS
            if self._problem == ANOTHER_RECORDS:
                logger.warning("this node records what is registered from here on; the one before it has stopped")
            self._problem = ""
            return True
        self._claimed_until = 0.0
        if self._problem != ANOTHER_RECORDS:
            self._problem = ANOTHER_RECORDS
            logger.warning(ANOTHER_RECORDS)
        return False

    def _new(self, rows: Sequence[Row]) -> tuple[list[Row], dict[str, Position]]:
        """The rows that are not in the journal, and the tips of their streams once they are."""
        new: list[Row] = []
        reached: dict[str, Position] = {}
        for row in rows:
            if row.kind is RowKind.PUBLISH:
                before = reached.get(row.stream) or self._recorded.get(row.stream)
                if before is not None and before.epoch == row.epoch:
                    if row.offset <= before.offset:
                        continue
                    self._count_missing(row, before.offset)
                reached[row.stream] = Position(row.epoch, row.offset)
            new.append(row)
        return new, reached

    def _count_missing(self, row: Row, before: int) -> None:
        if missing := row.offset - before - 1:
            self.missing += missing
            logger.error("publications are not recorded", extra={"stream": row.stream, "after": before, "missing": missing})

    async def _remove(self, piece: QueuedRows) -> None:
        if not await self._queue.remove(piece):
            self._claimed_until = 0.0
            logger.warning("another node has taken over recording")


# --- rows that a node adds to the record queue: its sessions and their presence --------------------------------------------

WAITING_ROWS = 10_000
FINISH_SECONDS = 2.0
UNWANTED_SECONDS = 5.0
"""How long a node adds no rows after the queue has reported that no node records."""


class QueuedNotes:
    """Implements `ports.Journal` for the session log of a node: adds rows to the record queue in the background.

    Rows are sent once: after a lost answer they may or may not be recorded. They are for statistics; the sessions themselves
    are in the store.
    """

    instant = True

    def __init__(self, queue: RecordQueue, clock: Clock) -> None:
        self._queue = queue
        self._clock = clock
        self._waiting: list[Row] = []
        self._handing_over: asyncio.Task[None] | None = None
        self._unwanted_until = 0.0
        self._dropped = 0

    async def write(self, rows: Sequence[Row]) -> None:
        self.write_nowait(rows)

    def write_nowait(self, rows: Sequence[Row]) -> None:
        if self._clock() < self._unwanted_until:
            return
        if len(self._waiting) + len(rows) > WAITING_ROWS:
            self._dropped += len(rows)
            return
        self._waiting += rows
        if self._handing_over is None:
            self._handing_over = asyncio.get_running_loop().create_task(self._hand_over())

    async def finish(self) -> None:
        if self._handing_over is not None:
            await asyncio.wait([self._handing_over], timeout=FINISH_SECONDS)

    def health(self) -> str:
        return ""

    def gauges(self) -> dict[str, float]:
        return {**self._queue.gauges(), "record_queue_unsent_rows": self._dropped}

    async def _hand_over(self) -> None:
        try:
            while self._waiting:
                rows, self._waiting = self._waiting, []
                await self._offer(rows)
        finally:
            self._handing_over = None

    async def _offer(self, rows: Sequence[Row]) -> None:
        try:
            if not await self._queue.add(rows):
                self._unwanted_until = self._clock() + UNWANTED_SECONDS
        except Unavailable as error:
            self._dropped += len(rows)
            logger.debug("rows of sessions are not recorded", extra={"rows": len(rows), "reason": str(error)})


class RecordedSessionLog(JournalSessionLog):
    """The session log of a node in a cluster. The sessions are in the store; the journal is only a record of them. `recorder`
    is set if this node has a journal."""

    lasting = False

    def __init__(self, notes: QueuedNotes, clock: Clock, recorder: Recorder | None) -> None:
        super().__init__(notes, clock)
        self._notes = notes
        self._recorder = recorder

    async def disconnect_requested(self, request: RemoteDisconnect) -> None:
        """Writes nothing: the store keeps the request, every node receives it, and each ended session has its own row."""

    async def finish(self) -> None:
        await self._notes.finish()

    def health(self) -> str:
        return self._recorder.health() if self._recorder is not None else ""

    def gauges(self) -> dict[str, float]:
        return {**self._notes.gauges(), **(self._recorder.gauges() if self._recorder is not None else {})}

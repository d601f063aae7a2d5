"""The journal of a cluster: one node records what all nodes registered.

Invariant: a publication is in the journal once, under the position that clients see. It leaves the store's record queue only
after it is written, and what is read twice is known by its position. A recorder that is away loses nothing as long as the queue
holds what is registered meanwhile.
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
"""For how long a recorder that stopped without a word keeps others from recording."""

ROWS_AT_ONCE = 1000
PAUSE_SECONDS = 0.05
"""Between two looks into a queue that was empty."""

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
        self._problem = "what is registered is not recorded yet"
        self.missing = 0
        """Publications of which only the successors came: they left a full queue."""

    def recover(self, recovered: Recovered, sessions_ttl: float, presence_ttl: float) -> Restored:
        """How far the journal has come. Streams and sessions themselves are in the store."""
        for tip in recovered.tips:
            self._recorded[tip.stream] = Position(tip.epoch, tip.tip)
        return Restored(len(self._recorded), 0, 0, [])

    async def start(self) -> None:
        """What is registered from here on is kept for the journal, unless the store is away or another node records."""
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(CLAIM_SECONDS / 2):
                await self._claim()
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """What is in the record queue now is recorded, if that can be done at once."""
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
            if moved < ROWS_AT_ONCE:
                await asyncio.sleep(PAUSE_SECONDS)

    async def record(self) -> int:
        """Move what waits, as much as is moved at once. Returns how many rows that were. Raises `Unavailable`."""
        try:
            if not await self._claim():
                return 0
            moved = await self._move()
        except Unavailable as error:
            self._problem = f"what is registered is not recorded: {error}"
            raise
        self._problem = ""
        return moved

    async def _move(self) -> int:
        piece = await self._queue.read(ROWS_AT_ONCE)
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
        """Those that are not in the journal, and how far it will have come with them."""
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


# --- what a node adds to the record queue: its sessions and their presence -------------------------------------------------

WAITING_ROWS = 10_000
FINISH_SECONDS = 2.0
UNWANTED_SECONDS = 5.0
"""For how long a node does not offer rows again after it heard that nobody records them."""


class QueuedNotes:
    """Implements `ports.Journal` for the session log of a node: rows go to the record queue soon; nobody waits for them.

    A row is handed over once: those of an answer that was lost may be recorded or not. They are for statistics, the sessions
    themselves are in the store.
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
    """The session log of a node in a cluster. What has to outlive the node is in the store; the journal only tells of it.
    `recorder`: that of this node, if it is the one that records."""

    lasting = False

    def __init__(self, notes: QueuedNotes, clock: Clock, recorder: Recorder | None) -> None:
        super().__init__(notes, clock)
        self._notes = notes
        self._recorder = recorder

    async def ordered(self, order: RemoteDisconnect) -> None:
        """Every node hears of the order, and the store keeps it; the ends of sessions have rows of their own."""

    async def finish(self) -> None:
        await self._notes.finish()

    def health(self) -> str:
        return self._recorder.health() if self._recorder is not None else ""

    def gauges(self) -> dict[str, float]:
        return {**self._notes.gauges(), **(self._recorder.gauges() if self._recorder is not None else {})}

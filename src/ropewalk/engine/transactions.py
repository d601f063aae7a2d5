"""Transactions: stage, decide, publish, finish; and rows that are published without a transaction.

Invariant: nothing of a batch is published before its decision is durable, and nothing of a newer batch before the decided
one is finished. A crash in between loses nothing, because the broker knows the sequences it registered.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from weakref import WeakValueDictionary
from zlib import crc32

import msgspec

from ropewalk.core.transactions import (
    MAX_GROUP_ROWS,
    TransactionLedger,
    decode_groups,
    encode_group,
    encode_sequence,
    split_into_groups,
)
from ropewalk.model.errors import Conflict, MalformedPublication, RopewalkError
from ropewalk.model.messages import Publication
from ropewalk.model.transactions import Committed, Decision, Produced, Staged, StagedPiece
from ropewalk.ports import Clock, Publisher, RowReader, Staging

logger = logging.getLogger("ropewalk.transactions")


class NamedLocks:
    """One lock per name. A name takes memory only while its lock is in use."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, name: str) -> AbstractAsyncContextManager[None]:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock


class Transactions:
    """Implements `ports.Transactor`. Call `start` first: it finishes batches that were decided before a crash."""

    def __init__(
        self, publisher: Publisher, staging: Staging, read_rows: RowReader, ledger: TransactionLedger, clock: Clock
    ) -> None:
        self._publisher = publisher
        self._staging = staging
        self._read_rows = read_rows
        self._ledger = ledger
        self._clock = clock
        self._apps = NamedLocks()
        self._producers = NamedLocks()

    async def start(self) -> None:
        for record in await self._staging.load():
            for batch, pieces in self._ledger.restore(record, self._clock()):
                await self._staging.discard(record.app, batch, pieces)
        for app in self._ledger.unfinished():
            try:
                tally = await self._finish_decided(app)
                logger.info("transaction finished after a restart", extra={"app": app, **tally.as_dict()})
            except RopewalkError as error:  # the application's next call retries, and gets the error
                logger.error("transaction cannot be finished", extra={"app": app, "reason": str(error)})

    # --- staging ------------------------------------------------------------------------------------------------------

    async def stage(self, app: str, batch: int, key: tuple[int, int, int], body: bytes) -> Staged:
        if self._ledger.is_finished(app, batch):
            return Staged(0, True)
        rows = _refuse_producers(await self._rows(body))
        data = await _encode(rows)
        piece = StagedPiece(*key, len(data), await asyncio.to_thread(crc32, data))
        for other, number in self._ledger.make_room(app, batch, piece, self._clock()):
            logger.info("staged batch given up", extra={"app": other, "batch": number})
            await self._staging.discard_batch(other, number)
        await self._staging.put(app, batch, piece, data)
        counts, unneeded = self._ledger.place(app, batch, piece, self._clock())
        await self._staging.discard(app, batch, unneeded)
        if not counts and not self._ledger.is_finished(app, batch):
            raise Conflict("the pieces before this one are gone")
        return Staged(len(rows), not counts)

    async def _rows(self, body: bytes) -> list[Publication]:
        """All rows of a body. Publications are built in small groups here, because a thread that builds them would hold the
        GIL and block the event loop. Raises if the body is refused."""
        rows = await asyncio.to_thread(self._read_rows, body)
        made: list[Publication] = []
        for start in range(0, len(rows), MAX_GROUP_ROWS):
            made += rows.publications(start, MAX_GROUP_ROWS)
            await asyncio.sleep(0)
        return made

    # --- commit -------------------------------------------------------------------------------------------------------

    async def last_batch(self, app: str) -> int | None:
        async with self._apps.of(app):
            await self._finish_decided(app)
            return self._ledger.last(app)

    async def commit(self, app: str, batch: int, winners: Mapping[int, int], counts: Mapping[int, int]) -> Committed:
        async with self._apps.of(app):
            await self._finish_decided(app)
            last = self._ledger.last(app)
            if last is not None and batch <= last:
                return Committed(0, 0, True, last)
            await self._decide(app, self._ledger.decide(app, batch, winners, counts))
            tally = await self._finish_decided(app)
            return Committed(tally.published, tally.skipped, False, batch)

    async def _decide(self, app: str, decision: Decision) -> None:
        try:
            broken = await self._staging.decide(app, self._ledger.last(app), decision)
        except RopewalkError:
            self._ledger.undecide(app)
            raise
        if broken:
            self._ledger.undecide(app)
            self._ledger.mark_broken(app, decision.batch, broken)
            missing = sorted({(piece.part, piece.attempt) for piece in broken})
            raise Conflict("staged pieces are damaged", [{"part": part, "attempt": attempt} for part, attempt in missing])

    async def _finish_decided(self, app: str) -> "_Tally":
        """Publish and finish the decided batch, if there is one. Its decision may be from an earlier call or start."""
        tally = _Tally()
        decision = self._ledger.decided(app)
        if decision is not None:
            await self._publish_pieces(app, decision, tally)
            await self._staging.finish(app, decision.batch)
            self._ledger.finish(app)
        return tally

    async def _publish_pieces(self, app: str, decision: Decision, tally: "_Tally") -> None:
        index = 0
        for piece in decision.pieces:
            data = await self._staging.read(app, decision.batch, piece)
            for group in decode_groups(data, app, encode_sequence(decision.batch, index)):
                await self._publish(group, tally)
                index += len(group)

    # --- rows without a transaction -----------------------------------------------------------------------------------

    async def produce(self, producer: str, first: int, body: bytes) -> Produced:
        rows = _refuse_producers(await self._rows(body))
        async with self._producers.of(producer):  # a later request in between would turn the rest of this one into duplicates
            return await self._publish_rows(rows, producer, first)

    async def publish(self, body: bytes) -> Produced:
        rows = await self._rows(body)
        async with AsyncExitStack() as turns:
            for producer in sorted({row.producer for row in rows} - {""}):  # sorted, so that two requests do not deadlock
                await turns.enter_async_context(self._producers.of(producer))
            return await self._publish_rows(rows)

    async def _publish_rows(self, rows: Sequence[Publication], producer: str = "", first: int = 0) -> Produced:
        tally = _Tally()
        for group in split_into_groups(rows):
            await self._publish(_with_sequences(group, producer, first) if producer else group, tally)
            first += len(group)
        return Produced(tally.published, tally.skipped)

    async def _publish(self, group: Sequence[Publication], tally: "_Tally") -> None:
        receipts = await self._publisher.publish(group)
        known = sum(receipt.duplicate for receipt in receipts)
        tally.skipped += known
        tally.published += len(receipts) - known
        await asyncio.sleep(0)  # a publisher that never suspends would block other tasks

    def gauges(self) -> dict[str, float]:
        return self._ledger.gauges()


class _Tally:
    __slots__ = ("published", "skipped")

    def __init__(self) -> None:
        self.published = 0
        self.skipped = 0

    def as_dict(self) -> dict[str, int]:
        return {"published": self.published, "skipped": self.skipped}


def _refuse_producers(rows: Sequence[Publication]) -> Sequence[Publication]:
    """Refuses rows with a producer: the request itself numbers its rows."""
    for index, row in enumerate(rows):
        if row.producer:
            raise MalformedPublication("the column producer is for rows that are published as they come", index)
    return rows


def _with_sequences(group: Sequence[Publication], producer: str, first: int) -> list[Publication]:
    return [msgspec.structs.replace(row, producer=producer, sequence=first + index) for index, row in enumerate(group)]


async def _encode(rows: Sequence[Publication]) -> bytes:
    data = bytearray()
    for group in split_into_groups(rows):
        data += encode_group(group)
        await asyncio.sleep(0)
    return bytes(data)

"""Two ways to commit an append: at once, or planned with its group and applied after that was written to the journal.

Invariant: messages become readable and deduplicated and enter the feed in one step, in the order of their positions, and never
before they are as durable as requested. A plan changes nothing: its positions are visible only to the rest of the same group,
and it is applied as a whole or dropped.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from ropewalk.adapters.backends.memory.streams import StreamTable
from ropewalk.core.idempotency import Registrations
from ropewalk.model.errors import PartitionChanged, Unavailable
from ropewalk.model.journal import Row, RowKind, encode_publication_detail
from ropewalk.model.messages import KSUID_LENGTH, Position, Publication, Receipt, Registered, build_transient, message_fields
from ropewalk.ports import Clock, Deliver, Journal

MAX_WAITING = 100_000
"""Publications that may wait for the journal. Beyond this limit they are refused, which also slows publishers down."""


class MemoryFeed(Protocol):
    """Takes what the store registers and publishes, in order."""

    publish: Deliver


class DirectCommit:
    """Never suspends. An instant journal is written afterwards."""

    instant = True

    def __init__(
        self, table: StreamTable, registrations: Registrations, clock: Clock, feed: MemoryFeed, journal: Journal | None
    ) -> None:
        self._table = table
        self._registrations = registrations
        self._clock = clock
        self._feed = feed
        self._journal = journal

    async def append(self, publications: Sequence[Publication]) -> list[Receipt]:
        check_partition_keys(publications, self._table, {})
        now = self._clock()
        fresh: list[tuple[Publication, Registered]] = []
        receipts = [self._register(publication, now, fresh) for publication in publications]
        if fresh:
            self._feed.publish([message for _, message in fresh])
            if self._journal is not None:
                key = self._table.partition_key
                rows = [row_of(publication, message, key(message.stream)) for publication, message in fresh if message.offset]
                self._journal.write_nowait(rows)
        return receipts

    async def settle(self) -> None:
        """Nothing ever waits."""

    def _register(self, publication: Publication, now: float, fresh: list[tuple[Publication, Registered]]) -> Receipt:
        if publication.transient:
            message = build_transient(publication, now)
        elif publication.uid or publication.producer:
            first = self._registrations.find(publication, now)
            if first is not None:
                return Receipt(publication.stream, first.epoch, first.offset, True)
            message = self._table.append(publication, now)
            self._registrations.remember(publication, message, now)
        else:
            message = self._table.append(publication, now)
        fresh.append((publication, message))
        return Receipt(publication.stream, message.epoch, message.offset)


class AppendPlan:
    """`add` each append of the group, have `rows` written, then `apply`."""

    def __init__(self, table: StreamTable, registrations: Registrations, now: float) -> None:
        self._table = table
        self._registrations = registrations
        self._now = now
        self._last: dict[str, Registered] = {}  # by stream: the last planned message
        self._partition_keys: dict[str, str] = {}  # of each stream in it
        self._draft = registrations.draft()
        self._fresh: list[tuple[Publication, Registered]] = []

    @property
    def rows(self) -> list[Row]:
        keys = self._partition_keys
        return [
            row_of(publication, registered, keys[publication.stream])
            for publication, registered in self._fresh
            if registered.offset
        ]

    @property
    def messages(self) -> list[Registered]:
        """The new messages, transient ones included, in order."""
        return [registered for _, registered in self._fresh]

    def add(self, publications: Sequence[Publication]) -> list[Receipt]:
        """Raises PartitionChanged, and then none of them is planned."""
        check_partition_keys(publications, self._table, self._partition_keys)
        return [self._register(publication) for publication in publications]

    def apply(self) -> None:
        for publication, registered in self._fresh:
            if registered.offset:
                self._table.place(registered)
                self._table.assign(registered.stream, self._partition_keys[registered.stream])
                self._registrations.remember(publication, registered, self._now)

    def _register(self, publication: Publication) -> Receipt:
        if publication.transient:
            registered = build_transient(publication, self._now)
        else:
            named = bool(publication.uid or publication.producer)
            first = self._first(publication) if named else None
            if first is not None:
                return Receipt(publication.stream, first.epoch, first.offset, True)
            registered = self._place(publication)
            if named:
                self._draft.remember(publication, registered, self._now)
        self._fresh.append((publication, registered))
        return Receipt(publication.stream, registered.epoch, registered.offset)

    def _first(self, publication: Publication) -> Position | None:
        registrations, draft, now = self._registrations, self._draft, self._now
        by_sequence = registrations.by_sequence(publication) or draft.by_sequence(publication)
        return by_sequence or registrations.by_uid(publication, now) or draft.by_uid(publication, now)

    def _place(self, publication: Publication) -> Registered:
        stream = publication.stream
        last = self._last.get(stream)
        if last is None:
            epoch, tip, newest = self._table.reach(stream)
            self._partition_keys[stream] = publication.partition_key or self._table.partition_key(stream)
        else:
            epoch, tip, newest = last.epoch, last.offset, last.timestamp
        uid, time, key = publication.uid, publication.ts_producer, self._partition_keys[stream]
        has_fields = time or key != stream or len(uid) == KSUID_LENGTH
        registered = self._last[stream] = Registered(
            stream,
            publication.payload,
            max(self._now, newest),
            epoch,
            tip + 1,
            publication.exclude_socket,
            publication.broadcast_type,
            message_fields(uid, time, key if key != stream else "") if has_fields else None,
        )
        return registered


def check_partition_keys(publications: Sequence[Publication], table: StreamTable, planned: Mapping[str, str]) -> None:
    """Raises PartitionChanged unless each stream is given the partition key that it has, or none."""
    for publication in publications:  # hardly any names one, and this is on the way of all
        if publication.partition_key:
            break
    else:
        return
    seen = dict(planned)
    for publication in publications:
        if publication.transient:
            continue
        stream, named = publication.stream, publication.partition_key
        kept = seen.get(stream) or (table.partition_key(stream) if stream in table.logs else named or stream)
        if named and named != kept:
            raise PartitionChanged(stream, named, kept)
        seen[stream] = kept


def row_of(publication: Publication, registered: Registered, partition_key: str) -> Row:
    return Row(
        RowKind.PUBLISH,
        partition_key,
        registered.timestamp,
        publication.stream,
        registered.epoch,
        registered.offset,
        publication.payload,
        publication.uid,
        publication.exclude_socket,
        publication.broadcast_type,
        "",
        encode_publication_detail(publication.ts_producer) if publication.ts_producer else "",
        publication.producer,
        publication.sequence,
    )


class _Waiting:
    """One append on its way through the journal."""

    __slots__ = ("answer", "publications", "receipts")

    def __init__(self, publications: Sequence[Publication]) -> None:
        self.publications = publications
        self.receipts: list[Receipt] = []
        self.answer: asyncio.Future[list[Receipt]] = asyncio.get_running_loop().create_future()

    def conclude(self) -> None:
        if not self.answer.done():  # a publisher may have gone away meanwhile
            self.answer.set_result(self.receipts)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class JournaledCommit:
    """Writes one group to the journal at a time. Publications that arrive meanwhile form the next group."""

    instant = False

    def __init__(
        self,
        table: StreamTable,
        registrations: Registrations,
        clock: Clock,
        feed: MemoryFeed,
        journal: Journal,
        most_waiting: int = MAX_WAITING,
    ) -> None:
        self._table = table
        self._registrations = registrations
        self._clock = clock
        self._feed = feed
        self._journal = journal
        self._most = most_waiting
        self._waiting: list[_Waiting] = []
        self._count = 0
        self._writing: asyncio.Task[None] | None = None

    async def append(self, publications: Sequence[Publication]) -> list[Receipt]:
        # A batch larger than the limit is accepted if nothing else waits: otherwise it could never be written.
        if self._waiting and self._count + len(publications) > self._most:
            raise Unavailable(f"{self._count} publications wait for the journal already")
        waiting = _Waiting(publications)
        self._waiting.append(waiting)
        self._count += len(publications)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())
        return await waiting.answer

    async def settle(self) -> None:
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def _write(self) -> None:
        try:
            while self._waiting:
                group, self._waiting, self._count = self._waiting, [], 0
                await self._commit(group)
        finally:
            self._writing = None

    async def _commit(self, group: Sequence[_Waiting]) -> None:
        try:
            plan = AppendPlan(self._table, self._registrations, self._clock())
            for waiting in group:
                self._add(plan, waiting)
            if rows := plan.rows:
                await self._journal.write(rows)
            plan.apply()
            if messages := plan.messages:
                self._feed.publish(messages)
        except Exception as error:  # the task goes on for those who come after; each of these gets the reason
            for waiting in group:
                waiting.fail(error)
        else:
            for waiting in group:
                waiting.conclude()

    def _add(self, plan: AppendPlan, waiting: _Waiting) -> None:
        try:
            waiting.receipts = plan.add(waiting.publications)
        except PartitionChanged as error:  # the others of the group have nothing to do with it
            waiting.fail(error)

"""Two ways to commit an append: at once, or after its group was written to the journal.

Invariant: messages become readable and deduplicated and enter the feed in one step, in the order of their positions, and never
before they are as durable as requested.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from ropewalk.adapters.backends.memory.append_plan import AppendPlan, check_partition_keys, row_of
from ropewalk.adapters.backends.memory.feed import LocalFeed
from ropewalk.adapters.backends.memory.registrations import Registrations
from ropewalk.adapters.backends.memory.stream_table import StreamTable
from ropewalk.model.errors import PartitionChanged, Unavailable
from ropewalk.model.messages import Publication, Receipt, Registered, transient
from ropewalk.ports import Clock, Journal

MOST_WAITING = 100_000
"""Publications that may wait for the journal: beyond it publishers are told to come back, which also slows them down."""


class Commit(Protocol):
    async def append(self, publications: Sequence[Publication]) -> list[Receipt]: ...
    async def settle(self) -> None:
        """Returns when nothing is under way."""


class DirectCommit:
    """At once: never suspends. A journal that nobody waits for is told afterwards."""

    def __init__(
        self, table: StreamTable, registrations: Registrations, clock: Clock, feed: LocalFeed, journal: Journal | None
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
                self._journal.note(rows)
        return receipts

    async def settle(self) -> None:
        """Nothing ever waits."""

    def _register(self, publication: Publication, now: float, fresh: list[tuple[Publication, Registered]]) -> Receipt:
        if publication.transient:
            message = transient(publication, now)
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
    """One group at a time is on its way through the journal; whatever comes meanwhile forms the next one."""

    def __init__(
        self,
        table: StreamTable,
        registrations: Registrations,
        clock: Clock,
        feed: LocalFeed,
        journal: Journal,
        most_waiting: int = MOST_WAITING,
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
        # A batch larger than the bound is let in alone: refused now it would be refused for ever.
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

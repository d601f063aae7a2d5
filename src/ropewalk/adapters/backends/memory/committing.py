"""How an append becomes a fact: at once, at once and noted in a journal, or once its group is written there.

The rule they keep: messages become readable, known and fanned out in one step, and never before they are as safe as asked.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from ropewalk.adapters.backends.memory.known import Known, repeated
from ropewalk.adapters.backends.memory.planning import Plan, row_of
from ropewalk.adapters.backends.memory.shelf import Shelf
from ropewalk.model.errors import Unavailable
from ropewalk.model.messages import Publication, Registered
from ropewalk.ports import Appended, Clock, Journal, OnRegistered, ignore

MOST_WAITING = 100_000
"""Publications that may wait for the journal: beyond it publishers are told to come back, which also slows them down."""


class Commit(Protocol):
    async def append(self, publications: Sequence[Publication], registered: OnRegistered = ignore) -> Appended: ...
    async def settle(self) -> None:
        """Returns when nothing is under way."""


class DirectCommit:
    """Without a journal: never suspends."""

    def __init__(self, shelf: Shelf, known: Known, clock: Clock) -> None:
        self._shelf = shelf
        self._known = known
        self._clock = clock

    async def append(self, publications: Sequence[Publication], registered: OnRegistered = ignore) -> Appended:
        now = self._clock()
        appended = [self._register(publication, now) for publication in publications]
        registered(appended)
        return appended

    async def settle(self) -> None:
        """Nothing ever is."""

    def _register(self, publication: Publication, now: float) -> tuple[Registered, bool]:
        if publication.uid or publication.producer:
            return self._register_once(publication, now)
        return self._shelf.append(publication, now), True

    def _register_once(self, publication: Publication, now: float) -> tuple[Registered, bool]:
        first = self._known.find(publication, now)
        if first is not None:
            return repeated(publication, first, now), False
        registered = self._shelf.append(publication, now)
        self._known.remember(publication, registered, now)
        return registered, True


class NotedCommit:
    """With a journal that nobody waits for: never suspends either."""

    def __init__(self, direct: DirectCommit, journal: Journal) -> None:
        self._direct = direct
        self._journal = journal

    async def append(self, publications: Sequence[Publication], registered: OnRegistered = ignore) -> Appended:
        appended = await self._direct.append(publications, registered)
        pairs = zip(publications, appended, strict=True)
        self._journal.note([row_of(publication, message) for publication, (message, new) in pairs if new])
        return appended

    async def settle(self) -> None:
        """Nothing ever is."""


class _Waiting:
    """One append on its way through the journal."""

    __slots__ = ("answer", "appended", "publications", "registered")

    def __init__(self, publications: Sequence[Publication], registered: OnRegistered) -> None:
        self.publications = publications
        self.registered = registered
        self.appended: Appended = []
        self.answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

    def conclude(self) -> None:
        try:
            self.registered(self.appended)
        except Exception as error:  # whoever fans out failed: its own publisher hears of it, the rest of the group does not
            self.fail(error)
        else:
            if not self.answer.done():
                self.answer.set_result(self.appended)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():  # a publisher may have gone away meanwhile
            self.answer.set_exception(error)


class GroupCommit:
    """One group at a time is on its way through the journal; whatever comes meanwhile forms the next one."""

    def __init__(self, shelf: Shelf, known: Known, clock: Clock, journal: Journal, most_waiting: int = MOST_WAITING) -> None:
        self._shelf = shelf
        self._known = known
        self._clock = clock
        self._journal = journal
        self._most = most_waiting
        self._waiting: list[_Waiting] = []
        self._count = 0
        self._writing: asyncio.Task[None] | None = None

    async def append(self, publications: Sequence[Publication], registered: OnRegistered = ignore) -> Appended:
        # A batch larger than the bound is let in alone: refused now it would be refused for ever.
        if self._waiting and self._count + len(publications) > self._most:
            raise Unavailable(f"{self._count} publications wait for the journal already")
        waiting = _Waiting(publications, registered)
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
            plan = Plan(self._shelf, self._known, self._clock())
            for waiting in group:
                waiting.appended = plan.add(waiting.publications)
            if rows := plan.rows:
                await self._journal.write(rows)
            plan.apply()
        except Exception as error:  # the task goes on for those who come after; each of these gets the reason
            for waiting in group:
                waiting.fail(error)
        else:
            for waiting in group:
                waiting.conclude()

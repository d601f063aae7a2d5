"""Presence in a store that may fail (`ports.Leases`): asks several times, and settles later what could not be done at once.

Invariant: what is asked for one sid is asked in order, so that nothing that is repeated overtakes what came after it. Once the
store answers again, a session that lives is a member of what it joined and has not left, and of nothing else.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ropewalk.core.backoff import Backoff, Chance
from ropewalk.core.lifecycle import SessionState
from ropewalk.engine.session import Session
from ropewalk.engine.tasks import Tasks
from ropewalk.model.errors import RopewalkError, Unavailable
from ropewalk.model.presence import Member, PresenceEvent, PresencePage
from ropewalk.ports import PresenceStore

logger = logging.getLogger("ropewalk.presence")

ATTEMPTS = 6
PATIENT_ATTEMPTS = 12
BETWEEN_ATTEMPTS = Backoff(0.1, 2.0)
"""A client that comes back begins anew after some three seconds in which the store does not answer. Patient attempts take
longer than the lease: after that its end does what was asked for."""

T = TypeVar("T")


async def persist(ask: Callable[[], Awaitable[T]], chance: Chance, attempts: int = ATTEMPTS) -> T:
    """Ask a store that may fail several times. Raises `Unavailable`."""
    for attempt in range(attempts - 1):
        try:
            return await ask()
        except Unavailable:
            await asyncio.sleep(BETWEEN_ATTEMPTS.delay(attempt, chance))
    return await ask()


class _Turns(asyncio.Lock):
    waiting = 0


class PersistentPresence:
    """Implements `ports.PresenceStore`."""

    def __init__(self, inner: PresenceStore, tasks: Tasks, chance: Chance) -> None:
        self._inner = inner
        self._tasks = tasks
        self._chance = chance
        self._locks: dict[str, _Turns] = {}  # by sid, while something is asked for it
        self.lease = 0  # of this node
        self.expire = inner.expire  # called every second anyway

    async def join(self, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        return await self._in_turn(sid, lambda: self._join(stream, sid, member))

    async def _join(self, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        """Once more if this node got a new lease meanwhile: the place may have ended with the one before."""
        events: list[PresenceEvent] = []
        while True:
            lease = self.lease
            events += await self._inner.join(stream, sid, member)
            if lease == self.lease:
                return events

    async def leave(self, stream: str, sid: str) -> list[PresenceEvent]:
        return await self._in_turn(sid, lambda: self._inner.leave(stream, sid))

    async def detach(self, sid: str, ttl: float) -> None:
        await self._in_turn(sid, lambda: self._inner.detach(sid, ttl), PATIENT_ATTEMPTS)

    async def adopt(self, old_sid: str, new_sid: str) -> dict[str, Member]:
        return await self._in_turn(new_sid, lambda: self._inner.adopt(old_sid, new_sid))

    async def members(self, stream: str, after: str, limit: int) -> PresencePage:
        return await persist(lambda: self._inner.members(stream, after, limit), self._chance)

    def settle(self, session: "Session", stream: str) -> None:
        """See to it that the store has the session in this presence set, or not, as it is here. It may take long."""
        self._tasks.spawn(self._settle(session, stream))

    async def _settle(self, session: "Session", stream: str) -> None:
        async def as_it_is_now() -> None:
            member = (session.members or {}).get(stream)
            if member is None:
                await self._inner.leave(stream, session.sid)
            elif session.state is SessionState.LIVE:  # otherwise its place ends with its connection
                await self._join(stream, session.sid, member)

        while True:
            try:
                return await self._in_turn(session.sid, as_it_is_now)
            except Unavailable as error:
                logger.debug("presence is not settled yet", extra={"session": session.tag, "reason": str(error)})
                await asyncio.sleep(BETWEEN_ATTEMPTS.delay(ATTEMPTS, self._chance))
            except RopewalkError as error:
                logger.warning("a member cannot join", extra={"session": session.tag, "reason": str(error)})
                session.members = {other: held for other, held in (session.members or {}).items() if other != stream}
                return

    async def _in_turn(self, sid: str, ask: Callable[[], Awaitable[T]], attempts: int = ATTEMPTS) -> T:
        lock = self._locks.setdefault(sid, _Turns())
        lock.waiting += 1
        try:
            async with lock:
                return await persist(ask, self._chance, attempts)
        finally:
            lock.waiting -= 1
            if not lock.waiting:
                del self._locks[sid]

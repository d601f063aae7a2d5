"""Presence in a store that may fail (`ports.Leases`): retries each request, and reconciles failed ones later.

Invariant: the requests of one sid are made in order, so that a retry never overtakes a later request. Once the store answers
again, a live session is a member of the sets that it joined and has not left, and of no others.
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
"""After about three seconds of store errors a reconnecting client gets a new session. `PATIENT_ATTEMPTS` take longer than the
lease, whose expiry then has the effect of the failed request."""

T = TypeVar("T")


async def persist(ask: Callable[[], Awaitable[T]], chance: Chance, attempts: int = ATTEMPTS) -> T:
    """Make a request up to `attempts` times. Raises `Unavailable`."""
    for attempt in range(attempts - 1):
        try:
            return await ask()
        except Unavailable:
            await asyncio.sleep(BETWEEN_ATTEMPTS.delay(attempt, chance))
    return await ask()


class _CountedLock(asyncio.Lock):
    waiting = 0


class PersistentPresence:
    """Implements `ports.PresenceStore`."""

    def __init__(self, inner: PresenceStore, tasks: Tasks, chance: Chance) -> None:
        self._inner = inner
        self._tasks = tasks
        self._chance = chance
        self._locks: dict[str, _CountedLock] = {}  # by sid, while it has pending requests
        self.lease = 0  # of this node
        self.expire = inner.expire  # called every second anyway

    async def join(self, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        return await self._in_turn(sid, lambda: self._join(stream, sid, member))

    async def _join(self, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        """Join again if this node got a new lease meanwhile: the membership may have ended with the old one."""
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

    def reconcile(self, session: "Session", stream: str) -> None:
        """Join or leave in the background, so that the store has the session's current membership. Retries without limit."""
        self._tasks.spawn(self._reconcile(session, stream))

    async def _reconcile(self, session: "Session", stream: str) -> None:
        async def write_current() -> None:
            member = (session.members or {}).get(stream)
            if member is None:
                await self._inner.leave(stream, session.sid)
            elif session.state is SessionState.LIVE:  # otherwise `detach` ends the membership
                await self._join(stream, session.sid, member)

        while True:
            try:
                return await self._in_turn(session.sid, write_current)
            except Unavailable as error:
                logger.debug("presence is not written yet", extra={"session": session.tag, "reason": str(error)})
                await asyncio.sleep(BETWEEN_ATTEMPTS.delay(ATTEMPTS, self._chance))
            except RopewalkError as error:
                logger.warning("a member cannot join", extra={"session": session.tag, "reason": str(error)})
                session.members = {other: held for other, held in (session.members or {}).items() if other != stream}
                return

    async def _in_turn(self, sid: str, ask: Callable[[], Awaitable[T]], attempts: int = ATTEMPTS) -> T:
        lock = self._locks.setdefault(sid, _CountedLock())
        lock.waiting += 1
        try:
            async with lock:
                return await persist(ask, self._chance, attempts)
        finally:
            lock.waiting -= 1
            if not lock.waiting:
                del self._locks[sid]

"""Presence in a store that may fail (`ports.Leases`): asks several times.

Invariant: what is asked for one sid is asked in order, so that nothing that is repeated overtakes what came after it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ropewalk.core.backoff import Backoff, Chance
from ropewalk.core.lifecycle import SessionState
from ropewalk.engine.session import Session
from ropewalk.model.errors import Unavailable
from ropewalk.model.presence import Member, PresenceEvent, PresencePage
from ropewalk.ports import PresenceStore

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

    def __init__(self, inner: PresenceStore, chance: Chance) -> None:
        self._inner = inner
        self._chance = chance
        self._locks: dict[str, _Turns] = {}  # by sid, while something is asked for it
        self.expire = inner.expire  # called every second anyway

    async def join(self, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        return await self._in_turn(sid, lambda: self._inner.join(stream, sid, member))

    async def leave(self, stream: str, sid: str) -> list[PresenceEvent]:
        return await self._in_turn(sid, lambda: self._inner.leave(stream, sid))

    async def detach(self, sid: str, ttl: float) -> None:
        await self._in_turn(sid, lambda: self._inner.detach(sid, ttl), PATIENT_ATTEMPTS)

    async def adopt(self, old_sid: str, new_sid: str) -> dict[str, Member]:
        return await self._in_turn(new_sid, lambda: self._inner.adopt(old_sid, new_sid))

    async def page(self, stream: str, after: str, limit: int) -> PresencePage:
        return await persist(lambda: self._inner.page(stream, after, limit), self._chance)

    async def join_again(self, session: "Session", stream: str) -> None:
        """If it is still a member there when its turn comes."""

        async def join() -> None:
            member = (session.members or {}).get(stream)
            if member is not None and session.state is SessionState.LIVE:
                await self._inner.join(stream, session.sid, member)

        await self._in_turn(session.sid, join)

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

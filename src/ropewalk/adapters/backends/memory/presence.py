"""Presence in memory: the roster with this process's clock."""

from ropewalk.core.roster import Roster
from ropewalk.model.presence import Member, PresenceEvent, PresencePage
from ropewalk.ports import Clock


class MemoryPresence:
    """Implements `ports.PresenceStore`."""

    def __init__(self, roster: Roster, clock: Clock) -> None:
        self._roster = roster
        self._clock = clock

    async def join(self, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        return self._roster.join(stream, sid, member)

    async def leave(self, stream: str, sid: str) -> list[PresenceEvent]:
        return self._roster.leave(stream, sid)

    async def detach(self, sid: str, ttl: float) -> None:
        self._roster.detach(sid, self._clock() + ttl)

    async def adopt(self, old_sid: str, new_sid: str) -> None:
        self._roster.adopt(old_sid, new_sid)

    async def expire(self) -> list[PresenceEvent]:
        return self._roster.expire(self._clock())

    async def page(self, stream: str, after: str, limit: int) -> PresencePage:
        return self._roster.page(stream, after, limit)

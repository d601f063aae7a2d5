"""Presence in memory: the roster with this process's clock. Events enter the feed in the step of the change."""

from ropewalk.adapters.backends.memory.feed import LocalFeed
from ropewalk.core.roster import Roster
from ropewalk.core.server_publications import presence_publication
from ropewalk.core.stats import Stats
from ropewalk.model.messages import build_transient
from ropewalk.model.presence import Member, PresenceEvent, PresencePage
from ropewalk.ports import Clock


class MemoryPresence:
    """Implements `ports.PresenceStore`."""

    def __init__(self, roster: Roster, clock: Clock, feed: LocalFeed, stats: Stats) -> None:
        self._roster = roster
        self._clock = clock
        self._feed = feed
        self._stats = stats

    async def join(self, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        return self._told(self._roster.join(stream, sid, member))

    async def leave(self, stream: str, sid: str) -> list[PresenceEvent]:
        return self._told(self._roster.leave(stream, sid))

    async def detach(self, sid: str, ttl: float) -> None:
        self._roster.detach(sid, self._clock() + ttl)

    async def adopt(self, old_sid: str, new_sid: str) -> dict[str, Member]:
        return self._roster.adopt(old_sid, new_sid)

    async def expire(self) -> list[PresenceEvent]:
        return self._told(self._roster.expire(self._clock()))

    async def page(self, stream: str, after: str, limit: int) -> PresencePage:
        return self._roster.page(stream, after, limit)

    def _told(self, events: list[PresenceEvent]) -> list[PresenceEvent]:
        if events:
            now = self._clock()
            self._feed.publish([build_transient(presence_publication(event), now) for event in events])
            self._stats.publications += len(events)
        return events

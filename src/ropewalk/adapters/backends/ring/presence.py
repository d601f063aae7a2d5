"""Presence sets of a ring: each is kept by the node that holds its stream's shard.

Invariant: what one sid holds may be with several nodes. Those that are not reached when it leaves, or when another sid goes on
with it, are told later.
"""

from ropewalk.adapters.backends.ring.owed import Owed
from ropewalk.adapters.backends.ring.router import Router
from ropewalk.model.presence import Member, PresenceEvent, PresencePage


class RingPresence:
    """Implements `ports.PresenceStore`."""

    def __init__(self, router: Router, owed: Owed) -> None:
        self._router = router
        self._owed = owed

    async def join(self, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        events: list[PresenceEvent] = await self._router.call(stream, "join", stream, sid, member)
        return events

    async def leave(self, stream: str, sid: str) -> list[PresenceEvent]:
        events: list[PresenceEvent] = await self._router.call(stream, "leave", stream, sid)
        return events

    async def detach(self, sid: str, ttl: float) -> None:
        _, silent = await self._router.tell_all("detach", sid, ttl)
        for node in silent:
            self._owed.add(node, ("presence", sid), "detach", sid, ttl)

    async def adopt(self, old_sid: str, new_sid: str) -> dict[str, Member]:
        answers, silent = await self._router.tell_all("adopt", old_sid, new_sid)
        for node in silent:
            self._owed.add(node, ("presence", new_sid), "adopt", old_sid, new_sid)
        return {stream: member for held in answers.values() for stream, member in held.items()}

    async def expire(self) -> list[PresenceEvent]:
        answers = await self._router.ask_all("expire")
        return [event for events in answers.values() for event in events]

    async def page(self, stream: str, after: str, limit: int) -> PresencePage:
        page: PresencePage = await self._router.call(stream, "members", stream, after, limit)
        return page

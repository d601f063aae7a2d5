"""Presence sets in memory, and which node each sid lives on.

Invariant: what a sid holds ends with its node, unless another one has adopted it.
"""

from collections.abc import Callable, Sequence

from ropewalk.core.roster import Roster
from ropewalk.core.server_publications import presence_publication
from ropewalk.core.stats import Stats
from ropewalk.model.limits import StoreLimits
from ropewalk.model.messages import Registered, build_transient
from ropewalk.model.presence import Member, PresenceEvent
from ropewalk.model.shards import MemberContent, SeatContent
from ropewalk.ports import Clock


class MemoryPresence:
    """`carry` brings events to the nodes."""

    def __init__(self, clock: Clock, carry: Callable[[Sequence[Registered]], None], limits: StoreLimits, stats: Stats) -> None:
        self._clock = clock
        self._carry = carry
        self._stats = stats
        self._ttl = limits.presence_ttl
        self.roster = Roster(limits.max_members)
        self._sids: dict[str, set[str]] = {}  # by node
        self._node_of: dict[str, str] = {}

    def nodes(self) -> set[str]:
        return set(self._sids)

    def join(self, node: str, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        events = self.roster.join(stream, sid, member)
        self.roster.adopt(sid, sid)  # it is alive, even if its node counted as dead
        self._set_node(node, sid)
        return self.publish(events)

    def leave(self, stream: str, sid: str) -> list[PresenceEvent]:
        events = self.roster.leave(stream, sid)
        if not self.roster.holds(sid):
            self._forget_node(sid)
        return self.publish(events)

    def detach(self, sid: str, ttl: float) -> None:
        self.roster.detach(sid, self._clock() + ttl)

    def adopt(self, node: str, old_sid: str, new_sid: str) -> dict[str, Member]:
        self._forget_node(old_sid)
        held = self.roster.adopt(old_sid, new_sid)
        if held:
            self._set_node(node, new_sid)
        return held

    def expire(self) -> list[PresenceEvent]:
        due = self.roster.due(self._clock())
        for sid in due:
            self._forget_node(sid)
        return self.publish(self.roster.end(due))

    def node_died(self, node: str) -> None:
        for sid in sorted(self._sids.pop(node, ())):
            del self._node_of[sid]
            self.detach(sid, self._ttl)

    def take_out(self, belongs: Callable[[str], bool]) -> list[MemberContent]:
        """The presence sets of the streams that belong to it, without events: they continue in another store."""
        taken: list[MemberContent] = []
        for stream in sorted(filter(belongs, self.roster.streams())):
            for member, holders in self.roster.take_out(stream):
                seats = tuple(SeatContent(sid, self._node_of.get(sid, ""), deadline) for sid, deadline in holders)
                taken.append(MemberContent(stream, member, seats))
        for content in taken:
            for seat in content.seats:
                if not self.roster.holds(seat.sid):
                    self._forget_node(seat.sid)
        return taken

    def put_in(self, content: MemberContent) -> None:
        self.roster.put_in(content.stream, content.member, [(seat.sid, seat.deadline) for seat in content.seats])
        for seat in content.seats:
            if seat.node:
                self._set_node(seat.node, seat.sid)

    def publish(self, events: list[PresenceEvent]) -> list[PresenceEvent]:
        if events:
            now = self._clock()
            self._carry([build_transient(presence_publication(event), now) for event in events])
            self._stats.publications += len(events)
        return events

    def _set_node(self, node: str, sid: str) -> None:
        if self._node_of.get(sid) != node:
            self._forget_node(sid)
            self._node_of[sid] = node
            self._sids.setdefault(node, set()).add(sid)

    def _forget_node(self, sid: str) -> None:
        node = self._node_of.pop(sid, None)
        if node is not None:
            self._sids[node].discard(sid)
            if not self._sids[node]:
                del self._sids[node]

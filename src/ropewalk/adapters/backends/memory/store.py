"""The store of the memory backend: streams, sessions and presence, for one node or several.

Invariant: every call is one step, except for an append that waits for the journal, and a sweep between its slices. So what
several nodes ask at once has one order, and each of them sees it.
"""

import asyncio
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ropewalk.adapters.backends.memory.calls import CallKind, Scope, call
from ropewalk.adapters.backends.memory.commits import DirectCommit, JournaledCommit, MemoryFeed
from ropewalk.adapters.backends.memory.recovery import MemoryRecovery, RecoveredInto
from ropewalk.adapters.backends.memory.sessions import MemorySessions, NotifyNode
from ropewalk.adapters.backends.memory.streams import SWEPT_AT_ONCE, Commit, MemoryStreams, StreamTable
from ropewalk.core.idempotency import Registrations
from ropewalk.core.ring import locate_stream
from ropewalk.core.roster import Roster
from ropewalk.core.rules import Rulebook
from ropewalk.core.server_publications import presence_publication
from ropewalk.core.stats import Stats
from ropewalk.model.journal import Recovered, Restored
from ropewalk.model.limits import STORE_LIMITS, StoreLimits
from ropewalk.model.messages import Registered, build_transient
from ropewalk.model.presence import Member, PresenceEvent, PresencePage
from ropewalk.model.sessions import SessionSnapshot
from ropewalk.model.shards import MemberContent, ProducerContent, SeatContent, ShardItem, StreamContent, UidContent
from ropewalk.ports import Clock, Journal


class MemoryPresence:
    """Presence sets, and which node each sid lives on. `carry` brings events to the nodes.

    Invariant: what a sid holds ends with its node, unless another one has adopted it.
    """

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

    def is_due(self) -> bool:
        """Whether `expire` has more to do."""
        return self.roster.is_due(self._clock())

    def expire(self) -> list[PresenceEvent]:
        """End a slice of the expired sids."""
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


def random_epoch() -> str:
    """Eight URL-safe characters: 48 random bits."""
    return secrets.token_urlsafe(6)


class StoreOptions(NamedTuple):
    """`shards`: into how many parts the store can be taken apart; a journal that is recovered has its own number."""

    limits: StoreLimits = STORE_LIMITS
    journal: Journal | None = None
    stats: Stats | None = None
    shards: int = 1
    new_epoch: Callable[[], str] = random_epoch


class MemoryStore:
    """
    Args:
        notify: notifies the node of a session; None if there is one node.
    """

    def __init__(
        self, rulebook: Rulebook, clock: Clock, feed: MemoryFeed, options: StoreOptions, notify: NotifyNode | None = None
    ) -> None:
        limits, journal, stats = options.limits, options.journal, options.stats or Stats()
        self.clock = clock
        self.journal = journal
        self._table = table = StreamTable(rulebook, limits, options.new_epoch)
        self._registrations = Registrations(limits.dedup_ttl, limits.dedup_limit, table.partition_key, options.shards)
        self._commit: Commit
        if journal is None or journal.instant:
            self._commit = DirectCommit(table, self._registrations, clock, feed, journal)
        else:
            self._commit = JournaledCommit(table, self._registrations, clock, feed, journal)
        self.streams = MemoryStreams(table, self._commit, clock)
        self.sessions = MemorySessions(clock, limits, stats, notify)
        self.presence = MemoryPresence(clock, lambda messages: feed.publish(messages), limits, stats)

    def recover(self, recovered: Recovered, sessions_ttl: float, presence_ttl: float) -> Restored:
        """Restore the contents of a journal, before the store is used."""
        return self._recover_into(self.sessions, recovered, sessions_ttl, presence_ttl)

    def _recover_into(
        self, sessions: RecoveredInto, recovered: Recovered, sessions_ttl: float, presence_ttl: float
    ) -> Restored:
        recovery = MemoryRecovery(recovered, self.clock())
        recovery.streams(self._table, self._registrations)
        kept = recovery.sessions(sessions, sessions_ttl)
        recovery.members(self.presence.roster, presence_ttl)
        return Restored(len(self._table.logs), recovery.messages, kept, recovery.interrupted())

    @property
    def shards(self) -> int:
        return self._registrations.shards

    def take_out(self, shard: int) -> list[ShardItem]:
        """All of a shard of a ring. No append to it may be under way."""

        def belongs(name: str) -> bool:
            return locate_stream(name, self.shards) == shard

        return [
            *(self._table.take_out(stream) for stream in sorted(filter(belongs, self._table.logs))),
            *self._registrations.uids.take_out(belongs),
            *self._registrations.producers.take_out(shard),
            *self.sessions.take_out(belongs),
            *self.presence.take_out(belongs),
        ]

    def put_in(self, shard: int, items: Sequence[ShardItem]) -> None:
        for item in items:
            if isinstance(item, StreamContent):
                self._table.put_in(item)
        self._registrations.uids.put_in(item for item in items if isinstance(item, UidContent))
        self._registrations.producers.put_in(shard, (item for item in items if isinstance(item, ProducerContent)))
        for item in items:
            if isinstance(item, MemberContent):
                self.presence.put_in(item)
            else:
                self.sessions.put_in(item)

    async def stop(self) -> None:
        """Returns when everything is written."""
        await self._commit.settle()

    async def sweep(self) -> None:
        now = self.clock()
        while self._sweep_slice(now):  # noqa: ASYNC110 - it lets others go first, and waits for nothing
            await asyncio.sleep(0)

    def _sweep_slice(self, now: float) -> bool:
        """Returns whether there is more to do."""
        more = [
            self._table.sweep(now),
            self._registrations.uids.expire(now, SWEPT_AT_ONCE),
            self.sessions.sweep(now),
        ]
        return any(more)

    def reload_rules(self) -> None:
        self._table.reload_rules()

    def gauges(self) -> dict[str, float]:
        """Only kept sessions are counted here. Each node counts its live sessions itself."""
        return {
            "streams": len(self._table.logs),
            "history_messages": self._table.kept.messages,
            "history_bytes": self._table.kept.bytes,
            "sessions_kept": len(self.sessions),
            "sessions_kept_bytes": self.sessions.kept_bytes,
            "presence_members": self.presence.roster.members,
            "dedup_keys": len(self._registrations.uids),
        }


class NodeSessions:
    """Implements `ports.SessionStore` for one node."""

    def __init__(self, store: MemoryStore, node: str) -> None:
        self._store = store
        self._node = node

    @property
    def _sessions(self) -> MemorySessions:
        return self._store.sessions

    @call(scope=Scope.SHARD)
    async def save(self, sid: str, snapshot: SessionSnapshot, ttl: float) -> None:
        self._sessions.save(sid, snapshot, ttl)

    @call()
    async def peek(self, sid: str) -> SessionSnapshot | None:
        return self._sessions.peek(sid)

    @call(CallKind.TASK)
    async def take(self, sid: str, successor: str = "") -> SessionSnapshot | None:
        return self._sessions.take(self._node, sid, successor)

    @call(scope=Scope.ALL)
    async def revoke(self, ids: str, reconnect: bool) -> list[tuple[str, SessionSnapshot]]:
        return self._sessions.revoke(ids, reconnect)

    @call()
    async def take_expired(self, limit: int) -> list[tuple[str, SessionSnapshot]]:
        return self._sessions.expired(limit)

    async def take_abandoned(self) -> list[tuple[str, SessionSnapshot]]:
        return await self.abandoned(sys.maxsize, server_ends=True)

    @call()
    async def abandoned(self, limit: int, server_ends: bool) -> list[tuple[str, SessionSnapshot]]:
        """The sessions whose end a stopping node reports to the application: those that have expired, and if the whole server
        stops without a journal, also the kept ones, which cannot be resumed."""
        ended = self._sessions.expired(limit)
        if server_ends and self._store.journal is None:
            self._sessions.end_kept(limit - len(ended))  # only now there is room for them
            ended += self._sessions.expired(limit - len(ended))
        return ended


class NodePresence:
    """Implements `ports.PresenceStore` for one node."""

    def __init__(self, store: MemoryStore, node: str) -> None:
        self._store = store
        self._node = node

    @property
    def _presence(self) -> MemoryPresence:
        return self._store.presence

    @call(scope=Scope.SHARD)
    async def join(self, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        return self._presence.join(self._node, stream, sid, member)

    @call(scope=Scope.SHARD)
    async def leave(self, stream: str, sid: str) -> list[PresenceEvent]:
        return self._presence.leave(stream, sid)

    @call(scope=Scope.ALL)
    async def detach(self, sid: str, ttl: float) -> None:
        self._presence.detach(sid, ttl)

    @call(scope=Scope.ALL)
    async def adopt(self, old_sid: str, new_sid: str) -> dict[str, Member]:
        return self._presence.adopt(self._node, old_sid, new_sid)

    @call(CallKind.TASK)
    async def expire(self) -> list[PresenceEvent]:
        while not (events := self._presence.expire()) and self._presence.is_due():  # noqa: ASYNC110 - it lets others go first
            await asyncio.sleep(0)
        return events

    @call(scope=Scope.SHARD)
    async def members(self, stream: str, after: str, limit: int) -> PresencePage:
        return self._presence.roster.page(stream, after, limit)

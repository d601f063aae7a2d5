"""The memory backend: streams, sessions and presence of one process. With a journal they survive a restart.

Invariant: no method suspends except an append that waits for the journal, and a sweep between its slices. So every other call
is one step of the event loop.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence

from ropewalk.adapters.backends.memory.commits import DirectCommit, JournaledCommit
from ropewalk.adapters.backends.memory.feed import LocalFeed
from ropewalk.adapters.backends.memory.recovery import MemoryRecovery, RecoveredInto
from ropewalk.adapters.backends.memory.sessions import MemorySessions
from ropewalk.adapters.backends.memory.streams import SWEPT_AT_ONCE, Commit, MemoryStreams, StreamTable
from ropewalk.core.idempotency import Registrations
from ropewalk.core.ring import locate_stream
from ropewalk.core.roster import Roster
from ropewalk.core.rules import Rulebook
from ropewalk.core.server_publications import presence_publication
from ropewalk.core.stats import Stats
from ropewalk.model.journal import Recovered, Restored
from ropewalk.model.limits import STORE_LIMITS, StoreLimits
from ropewalk.model.messages import build_transient
from ropewalk.model.presence import Member, PresenceEvent, PresencePage
from ropewalk.model.shards import ProducerContent, ShardItem, StreamContent, UidContent
from ropewalk.ports import Clock, Journal


class MemoryPresence:
    """Implements `ports.PresenceStore`. Events enter the feed in the step of the change."""

    def __init__(self, roster: Roster, clock: Clock, feed: LocalFeed, stats: Stats) -> None:
        self._roster = roster
        self._clock = clock
        self._feed = feed
        self._stats = stats

    async def join(self, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        return self._publish_events(self._roster.join(stream, sid, member))

    async def leave(self, stream: str, sid: str) -> list[PresenceEvent]:
        return self._publish_events(self._roster.leave(stream, sid))

    async def detach(self, sid: str, ttl: float) -> None:
        self._roster.detach(sid, self._clock() + ttl)

    async def adopt(self, old_sid: str, new_sid: str) -> dict[str, Member]:
        return self._roster.adopt(old_sid, new_sid)

    async def expire(self) -> list[PresenceEvent]:
        return self._publish_events(self._roster.expire(self._clock()))

    async def members(self, stream: str, after: str, limit: int) -> PresencePage:
        return self._roster.page(stream, after, limit)

    def _publish_events(self, events: list[PresenceEvent]) -> list[PresenceEvent]:
        if events:
            now = self._clock()
            self._feed.publish([build_transient(presence_publication(event), now) for event in events])
            self._stats.publications += len(events)
        return events


def random_epoch() -> str:
    """Eight URL-safe characters: 48 random bits."""
    return secrets.token_urlsafe(6)


class MemoryBackend:
    """Implements `ports.Backend`.

    Args:
        shards: into how many parts it can be taken apart; a journal that is recovered has its own number.
    """

    def __init__(
        self,
        rulebook: Rulebook,
        clock: Clock,
        limits: StoreLimits = STORE_LIMITS,
        journal: Journal | None = None,
        stats: Stats | None = None,
        shards: int = 1,
        new_epoch: Callable[[], str] = random_epoch,
    ) -> None:
        self.clock = clock
        self.limits = limits
        self.journal = journal
        self.stats = stats or Stats()
        self._roster = Roster(limits.max_members)
        self._table = StreamTable(rulebook, limits, new_epoch)
        self._registrations = Registrations(limits.dedup_ttl, limits.dedup_limit, self._table.partition_key, shards)
        self.feed = LocalFeed()
        self._commit = _commit(self._table, self._registrations, clock, self.feed, journal)
        self.streams = MemoryStreams(self._table, self._commit, clock)
        self.sessions = MemorySessions(clock, limits, self.stats, lasting=journal is not None)
        self.presence = MemoryPresence(self._roster, clock, self.feed, self.stats)

    @property
    def leases(self) -> None:
        """It is one process's own."""

    @property
    def record_queue(self) -> None:
        """A journal is written with every append."""

    def recover(self, recovered: Recovered, sessions_ttl: float, presence_ttl: float) -> Restored:
        """Put back what a journal holds; before anything else is asked of this backend."""
        return self.recover_into(self.sessions, self._roster, recovered, sessions_ttl, presence_ttl)

    def recover_into(
        self, sessions: RecoveredInto, roster: Roster, recovered: Recovered, sessions_ttl: float, presence_ttl: float
    ) -> Restored:
        """The same, with sessions and presence that are kept elsewhere."""
        recovery = MemoryRecovery(recovered, self.clock())
        recovery.streams(self._table, self._registrations)
        kept = recovery.sessions(sessions, sessions_ttl)
        recovery.members(roster, presence_ttl)
        return Restored(len(self._table.logs), recovery.messages, kept, recovery.interrupted())

    @property
    def shards(self) -> int:
        return self._registrations.shards

    def take_out(self, shard: int) -> list[ShardItem]:
        """The streams of a shard of a ring, with their idempotency keys. No append to it may be under way."""

        def belongs(stream: str) -> bool:
            return locate_stream(stream, self.shards) == shard

        return [
            *(self._table.take_out(stream) for stream in sorted(filter(belongs, self._table.logs))),
            *self._registrations.uids.take_out(belongs),
            *self._registrations.producers.take_out(shard),
        ]

    def put_in(self, shard: int, items: Sequence[ShardItem]) -> None:
        for item in items:
            if isinstance(item, StreamContent):
                self._table.put_in(item)
        self._registrations.uids.put_in(item for item in items if isinstance(item, UidContent))
        self._registrations.producers.put_in(shard, (item for item in items if isinstance(item, ProducerContent)))

    async def start(self) -> None:
        """There is nothing to open."""

    async def stop(self) -> None:
        await self._commit.settle()

    def health(self) -> str:
        return ""

    async def sweep(self) -> None:
        now = self.clock()
        while self._sweep_slice(now):  # noqa: ASYNC110 - it lets others go first, and waits for nothing
            await asyncio.sleep(0)

    def _sweep_slice(self, now: float) -> bool:
        """Returns whether there is more to do."""
        more = [
            self._table.sweep(now),
            self._registrations.uids.expire(now, SWEPT_AT_ONCE),
            self.sessions.sweep(now, SWEPT_AT_ONCE),
        ]
        return any(more)

    def reload_rules(self) -> None:
        self._table.reload_rules()

    def gauges(self) -> dict[str, float]:
        return {
            "streams": len(self._table.logs),
            "history_messages": self._table.kept.messages,
            "history_bytes": self._table.kept.bytes,
            "sessions_kept": len(self.sessions),
            "sessions_kept_bytes": self.sessions.size,
            "presence_members": self._roster.members,
            "dedup_keys": len(self._registrations.uids),
        }


def _commit(table: StreamTable, registrations: Registrations, clock: Clock, feed: LocalFeed, journal: Journal | None) -> Commit:
    if journal is None or journal.instant:
        return DirectCommit(table, registrations, clock, feed, journal)
    return JournaledCommit(table, registrations, clock, feed, journal)

"""The store that the workers of one node share, in the process that keeps it: streams, sessions, presence, and leases.

Invariant: every call is one step, except for an append that waits for the journal. So what several workers ask at once has one
order, and each of them sees it.
"""

import asyncio
import sys
from collections.abc import Collection, Sequence
from typing import Protocol, cast

from msgspec.structs import replace

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.adapters.backends.workers.doubts import SessionDoubts
from ropewalk.adapters.backends.workers.presence import SharedPresence
from ropewalk.adapters.backends.workers.sessions import SharedSessions
from ropewalk.model.journal import Recovered, Restored, RowKind
from ropewalk.model.messages import Registered, RemoteDisconnect
from ropewalk.model.presence import Member, PresenceEvent, PresencePage
from ropewalk.model.sessions import Renewal, SessionSnapshot, SessionTaken, SessionWrite
from ropewalk.ports import Deliver


class Carrier(Protocol):
    """What brings messages and orders of the store to the nodes."""

    def carry(self, messages: Sequence[Registered]) -> None: ...
    def order(self, node: str, order: SessionTaken) -> None: ...


class SharedStore:
    """A store for several nodes.

    Args:
        memory: keeps the streams.
        first_lease: not used by an earlier run of the store, so that nodes notice the new run.
    """

    def __init__(self, memory: MemoryBackend, carrier: Carrier, first_lease: int = 1) -> None:
        self.memory = memory
        self.clock = clock = memory.clock
        self.carrier = carrier
        self._journal = journal = memory.journal
        self._next_lease = first_lease
        self.sessions = SharedSessions(clock, carrier.order, memory.limits, memory.stats)
        self.presence = SharedPresence(clock, carrier.carry, memory.limits)
        self.doubts = SessionDoubts(journal, clock, self.sessions.kept_for, self.sessions.end) if journal is not None else None
        self._leases: dict[str, tuple[int, float]] = {}  # by node: its number, and when it ends

    def recover(self, recovered: Recovered, sessions_ttl: float, presence_ttl: float) -> Restored:
        """Put back what a journal holds; before anything else is asked of this store. Whether a session was interrupted is
        only known later: its worker may live, and have it still."""
        into = _Into(self.sessions)
        restored = self.memory.recover_into(into, self.presence.roster, recovered, sessions_ttl, presence_ttl)
        doubted = [row for row in restored.interrupted if row.kind is RowKind.DISCONNECTED]
        over = dict(into.ended)
        if self.doubts is not None:
            self.doubts.recovered(doubted, over)
        for sid in over.keys() - {row.sid for row in doubted}:
            self.sessions.end(sid, over[sid])
        return replace(restored, interrupted=[row for row in restored.interrupted if row.kind is not RowKind.DISCONNECTED])

    async def start(self) -> None:
        # What it appends is all that it publishes: no run ever comes this way.
        await self.memory.feed.start(cast(Deliver, self.carrier.carry), _nobody)

    def renew(self, node: str, ttl: float, received: Collection[str]) -> Renewal:
        now = self.clock()
        number, until = self._leases.get(node, (0, 0.0))
        if until <= now:
            self.end_lease(node)
            number, self._next_lease = self._next_lease, self._next_lease + 1
        self._leases[node] = number, now + ttl
        return Renewal(number, self.sessions.untold(node, received))

    async def sweep(self) -> None:
        now = self.clock()
        holders = self.sessions.nodes() | self.presence.nodes()
        for node in sorted(holders | self._leases.keys()):
            if self._leases.get(node, (0, 0.0))[1] <= now:
                self.end_lease(node)
        if self.doubts is not None:
            self.doubts.settle()
        while self.sessions.sweep(now):  # noqa: ASYNC110 - it lets others go first, and waits for nothing
            await asyncio.sleep(0)
        await self.memory.sweep()

    def gauges(self) -> dict[str, float]:
        """Of sessions only those that are kept count: those that live are counted where they live."""
        return {
            **self.memory.gauges(),
            "sessions_kept": len(self.sessions),
            "sessions_kept_bytes": self.sessions.kept_bytes,
            "presence_members": self.presence.roster.members,
        }

    def take_abandoned(self, limit: int, server_ends: bool) -> list[tuple[str, SessionSnapshot]]:
        """Sessions of whose end a node that stops tells the application: those that are over, and when the whole server ends
        without a journal, also those that are kept. Nobody can come back to them."""
        if server_ends and self._journal is None:
            self.sessions.end_kept(limit)
        return self.sessions.expired(limit)

    def end_lease(self, node: str) -> None:
        self._leases.pop(node, None)
        self.sessions.node_died(node)
        self.presence.node_died(node)


class _Into:
    """Where a recovery puts sessions; those that are over are looked at first."""

    def __init__(self, sessions: SharedSessions) -> None:
        self._sessions = sessions
        self.keep = sessions.keep
        self.ended: list[tuple[str, SessionSnapshot]] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def end(self, sid: str, snapshot: SessionSnapshot) -> None:
        self.ended.append((sid, snapshot))


async def _nobody(order: RemoteDisconnect) -> int:
    return 0


class NodeSessions:
    """Implements `ports.SessionStore` and `ports.Leases` for one node."""

    same_host = True

    def __init__(self, store: SharedStore, node: str) -> None:
        self._store = store
        self._node = node

    @property
    def _sessions(self) -> SharedSessions:
        return self._store.sessions

    async def save(self, sid: str, snapshot: SessionSnapshot, ttl: float) -> None:
        self._sessions.save(sid, snapshot, ttl)

    async def peek(self, sid: str) -> SessionSnapshot | None:
        return self._sessions.peek(sid)

    async def take(self, sid: str, successor: str = "") -> SessionSnapshot | None:
        return self._sessions.take(self._node, sid, successor)

    async def revoke(self, ids: str, reconnect: bool) -> list[tuple[str, SessionSnapshot]]:
        return self._sessions.revoke(ids, reconnect)

    async def take_expired(self, limit: int) -> list[tuple[str, SessionSnapshot]]:
        return self._sessions.expired(limit)

    async def take_abandoned(self) -> list[tuple[str, SessionSnapshot]]:
        return self._store.take_abandoned(sys.maxsize, server_ends=False)

    async def renew(self, ttl: float, received: Collection[str]) -> Renewal:
        return self._store.renew(self._node, ttl, received)

    async def write(self, sessions: Sequence[SessionWrite]) -> list[SessionTaken]:
        return [taken for write in sessions if (taken := self._sessions.write(self._node, write))]


class NodePresence:
    """Implements `ports.PresenceStore` for one node."""

    def __init__(self, store: SharedStore, node: str) -> None:
        self._store = store
        self._node = node

    @property
    def _presence(self) -> SharedPresence:
        return self._store.presence

    async def join(self, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        return self._presence.join(self._node, stream, sid, member)

    async def leave(self, stream: str, sid: str) -> list[PresenceEvent]:
        return self._presence.leave(stream, sid)

    async def detach(self, sid: str, ttl: float) -> None:
        self._presence.detach(sid, ttl)

    async def adopt(self, old_sid: str, new_sid: str) -> dict[str, Member]:
        return self._presence.adopt(self._node, old_sid, new_sid)

    async def expire(self) -> list[PresenceEvent]:
        return self._presence.expire()

    async def page(self, stream: str, after: str, limit: int) -> PresencePage:
        return self._presence.roster.page(stream, after, limit)

"""The store that the workers of one node share, in the process that keeps it: streams, sessions, presence, and leases.

Invariant: every call is one step, except for an append that waits for the journal. So what several workers ask at once has one
order, and each of them sees it.
"""

import asyncio
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.adapters.backends.memory.recovery import CRASHED
from ropewalk.adapters.backends.workers.calls import CallKind, Scope, call
from ropewalk.adapters.backends.workers.presence import SharedPresence
from ropewalk.adapters.backends.workers.sessions import SharedSessions
from ropewalk.model.journal import Recovered, Restored, Row, RowKind
from ropewalk.model.messages import Registered, RemoteDisconnect
from ropewalk.model.presence import Member, PresenceEvent, PresencePage
from ropewalk.model.session_log import SessionClosed
from ropewalk.model.sessions import Renewal, SessionSnapshot, SessionTaken, SessionWrite
from ropewalk.ports import Clock, Deliver, Journal

RECONNECT_GRACE_SECONDS = 10.0
"""For how long workers may come back to a store, before the sessions that lived on them count as interrupted."""

_BEGINNINGS = frozenset({RowKind.CONNECTED, RowKind.RESTORED})
_ENDS = frozenset({RowKind.DISCONNECTED, RowKind.ENDED})


class _InterruptedSession(Struct, frozen=True):
    """`over`: what is given out as expired if the session is gone. `unknown`: the store never knew of it, so that nobody else
    says that it has ended."""

    until: float
    row: Row
    over: SessionSnapshot | None = None
    unknown: bool = False


class InterruptedSessions:
    """Writes the rows of all workers, and knows from them which sessions each has. Rows of sessions whose worker or store
    is gone wait until it is known whether the session lives.

    Invariant: a session that goes on is never recorded as disconnected; one that does not is recorded as disconnected before it
    is recorded as ended.

    Args:
        kept: for how long a session of a worker is kept; None if the store does not know it.
        end: ends an expired session.
    """

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        kept: Callable[[str], float | None],
        end: Callable[[str, SessionSnapshot], None],
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._kept = kept
        self._end = end
        self._sids: dict[str, set[str]] = {}  # by worker
        self._rows: dict[str, _InterruptedSession] = {}  # the oldest first

    def note(self, worker: str, rows: Sequence[Row]) -> None:
        sids = self._sids.setdefault(worker, set())
        earlier: list[Row] = []
        for row in rows:
            if row.kind in _BEGINNINGS:
                sids.add(row.sid)
            elif row.kind in _ENDS:
                sids.discard(row.sid)
                doubt = self._rows.pop(row.sid, None)
                if doubt is not None and row.kind is RowKind.ENDED:
                    earlier.append(doubt.row)
        self._journal.write_nowait([*earlier, *rows])

    def claim(self, worker: str, sids: Collection[str]) -> None:
        """It has come back with these."""
        self._sids[worker] = set(sids)
        for sid in sids:
            self._rows.pop(sid, None)

    def lost(self, worker: str) -> None:
        """Its connection is gone. It may live, and come back."""
        now = self._clock()
        for sid in sorted(self._sids.pop(worker, ())):
            kept = self._kept(sid)
            detail = msgspec.json.encode(SessionClosed(bool(kept), CRASHED, followed=True)).decode()
            row = Row(RowKind.DISCONNECTED, sid, now, sid=sid, detail=detail)
            self._rows[sid] = _InterruptedSession(now + RECONNECT_GRACE_SECONDS, row, unknown=kept is None)

    def recovered(self, rows: Iterable[Row], over: dict[str, SessionSnapshot]) -> None:
        """Sessions that were connected when the store was lost, by the rows that say that they no longer are."""
        until = self._clock() + RECONNECT_GRACE_SECONDS
        for row in rows:
            self._rows[row.sid] = _InterruptedSession(until, row, over.get(row.sid))

    def settle(self, at_once: bool = False) -> None:
        now, rows = self._clock(), []
        while self._rows:
            sid, doubt = next(iter(self._rows.items()))
            if doubt.until > now and not at_once:
                break
            del self._rows[sid]
            rows.append(doubt.row)
            if doubt.over is not None:
                self._end(sid, doubt.over)
            elif doubt.unknown:
                rows.append(Row(RowKind.ENDED, sid, now, sid=sid))
        if rows:
            self._journal.write_nowait(rows)


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
        journal = memory.journal
        self._next_lease = first_lease
        self.sessions = SharedSessions(clock, carrier.order, memory.limits, memory.stats)
        self.presence = SharedPresence(clock, carrier.carry, memory.limits)
        self.interrupted = (
            InterruptedSessions(journal, clock, self.sessions.kept_for, self.sessions.end) if journal is not None else None
        )
        self._leases: dict[str, tuple[int, float]] = {}  # by node: its number, and when it ends

    def recover(self, recovered: Recovered, sessions_ttl: float, presence_ttl: float) -> Restored:
        """Put back what a journal holds; before anything else is asked of this store. Whether a session was interrupted is
        only known later: its worker may live, and have it still."""
        into = _Into(self.sessions)
        restored = self.memory.recover_into(into, self.presence.roster, recovered, sessions_ttl, presence_ttl)
        doubted = [row for row in restored.interrupted if row.kind is RowKind.DISCONNECTED]
        over = dict(into.ended)
        if self.interrupted is not None:
            self.interrupted.recovered(doubted, over)
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
        if self.interrupted is not None:
            self.interrupted.settle()
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
        return await self.abandoned(sys.maxsize, server_ends=False)

    @call()
    async def abandoned(self, limit: int, server_ends: bool) -> list[tuple[str, SessionSnapshot]]:
        """Sessions of whose end a node that stops tells the application: those that are over, and when the whole server ends
        without a journal, also those that are kept. Nobody can come back to them."""
        if server_ends and self._store.memory.journal is None:
            self._sessions.end_kept(limit)
        return self._sessions.expired(limit)

    @call()
    async def renew(self, ttl: float, received: Collection[str]) -> Renewal:
        return self._store.renew(self._node, ttl, received)

    @call(scope=Scope.SHARD)
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

    @call()
    async def expire(self) -> list[PresenceEvent]:
        return self._presence.expire()

    @call(scope=Scope.SHARD)
    async def members(self, stream: str, after: str, limit: int) -> PresencePage:
        return self._presence.roster.page(stream, after, limit)

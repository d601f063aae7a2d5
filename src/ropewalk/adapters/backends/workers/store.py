"""The store that the workers of one node share, in the process that keeps it: streams, sessions, presence, and leases.

Invariant: every call is one step, except for an append that waits for the journal. So what several workers ask at once has one
order, and each of them sees it.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ropewalk.adapters.backends.memory.calls import Scope, call
from ropewalk.adapters.backends.memory.recovery import CRASHED
from ropewalk.adapters.backends.memory.sessions import MemorySessions
from ropewalk.adapters.backends.memory.store import MemoryStore, NodeSessions, StoreOptions
from ropewalk.core.rules import Rulebook
from ropewalk.model.journal import Recovered, Restored, Row, RowKind
from ropewalk.model.messages import Registered
from ropewalk.model.session_log import SessionClosed
from ropewalk.model.sessions import Renewal, SessionSnapshot, SessionTaken, SessionWrite
from ropewalk.ports import Clock, Deliver, Journal

RECONNECT_GRACE_SECONDS = 10.0
"""For how long workers may come back to a store, before the sessions that lived on them count as interrupted."""

_BEGINNINGS = frozenset({RowKind.CONNECTED, RowKind.RESTORED})
_ENDS = frozenset({RowKind.DISCONNECTED, RowKind.ENDED})


class _InterruptedSession(Struct, frozen=True):
    """`over`: the snapshot to return as expired if the session does not continue. `unknown`: the store never had the session,
    so its end must be recorded here."""

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
        """Sessions that were connected when the store died, with the rows of their disconnects."""
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


class _StoreFeed:
    def __init__(self, carrier: Carrier) -> None:
        self.publish = cast(Deliver, carrier.carry)  # no run ever comes this way


class SharedStore(MemoryStore):
    """A store for several nodes, with the sessions that live on them.

    Args:
        first_lease: not used by an earlier run of the store, so that nodes notice the new run.
    """

    def __init__(self, rulebook: Rulebook, clock: Clock, carrier: Carrier, options: StoreOptions, first_lease: int = 1) -> None:
        super().__init__(rulebook, clock, _StoreFeed(carrier), options, carrier.order)
        self._next_lease = first_lease
        self._leases: dict[str, tuple[int, float]] = {}  # by node: its number, and when it ends
        journal = options.journal
        self.interrupted = (
            InterruptedSessions(journal, clock, self.sessions.kept_for, self.sessions.end) if journal is not None else None
        )

    def recover(self, recovered: Recovered, sessions_ttl: float, presence_ttl: float) -> Restored:
        """Whether a session was interrupted is only known later: its worker may live, and have it still."""
        into = _Into(self.sessions)
        restored = self._recover_into(into, recovered, sessions_ttl, presence_ttl)
        doubted = [row for row in restored.interrupted if row.kind is RowKind.DISCONNECTED]
        over = dict(into.ended)
        if self.interrupted is not None:
            self.interrupted.recovered(doubted, over)
        for sid in over.keys() - {row.sid for row in doubted}:
            self.sessions.end(sid, over[sid])
        return replace(restored, interrupted=[row for row in restored.interrupted if row.kind is not RowKind.DISCONNECTED])

    async def stop(self) -> None:
        """When all nodes are gone."""
        await super().stop()
        if self.interrupted is not None:
            self.interrupted.settle(at_once=True)

    def renew(self, node: str, ttl: float, received: Collection[str]) -> Renewal:
        now = self.clock()
        number, until = self._leases.get(node, (0, 0.0))
        if until <= now:
            self.end_lease(node)
            number, self._next_lease = self._next_lease, self._next_lease + 1
        self._leases[node] = number, now + ttl
        return Renewal(number, self.sessions.untold(node, received))

    def end_lease(self, node: str) -> None:
        self._leases.pop(node, None)
        self.sessions.node_died(node)
        self.presence.node_died(node)

    async def sweep(self) -> None:
        now = self.clock()
        holders = self.sessions.nodes() | self.presence.nodes()
        for node in sorted(holders | self._leases.keys()):
            if self._leases.get(node, (0, 0.0))[1] <= now:
                self.end_lease(node)
        if self.interrupted is not None:
            self.interrupted.settle()
        await super().sweep()


class _Into:
    """Receives recovered sessions. Ended ones are collected and checked first."""

    def __init__(self, sessions: MemorySessions) -> None:
        self._sessions = sessions
        self.keep = sessions.keep
        self.ended: list[tuple[str, SessionSnapshot]] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def end(self, sid: str, snapshot: SessionSnapshot) -> None:
        self.ended.append((sid, snapshot))


class LeasedSessions(NodeSessions):
    """Implements `ports.Leases` too."""

    same_host = True

    def __init__(self, store: SharedStore, node: str) -> None:
        super().__init__(store, node)
        self._shared = store

    @call()
    async def renew(self, ttl: float, received: Collection[str]) -> Renewal:
        return self._shared.renew(self._node, ttl, received)

    @call(scope=Scope.SHARD)
    async def write(self, sessions: Sequence[SessionWrite]) -> list[SessionTaken]:
        return [taken for write in sessions if (taken := self._sessions.write(self._node, write))]

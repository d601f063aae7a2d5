"""A store in memory that several nodes share, as they would share a database: what `ports.Leases` asks for, in plain code.

It is for tests and for the simulation, and says how a real one has to behave. Every call is one step. `SharedStore` is the
store; `NodeSessions` and `NodePresence` are how one node sees it.
"""

import sys
from collections import deque
from collections.abc import Collection, Sequence
from functools import partial
from itertools import islice
from typing import Protocol

from msgspec import Struct

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.core.roster import Roster
from ropewalk.core.rules import Rulebook
from ropewalk.core.server_publications import presence_publication
from ropewalk.model.journal import QueuedRows, Row
from ropewalk.model.messages import Registered, RemoteDisconnect, transient
from ropewalk.model.presence import Member, PresenceEvent, PresencePage
from ropewalk.model.sessions import Renewal, SessionSnapshot, SessionTaken, SessionWrite
from ropewalk.ports import Clock

REMEMBERED = 60.0
"""Seconds for which the store knows of a sid that it is gone, and of an identity that its sessions were revoked. Longer than a
write may be repeated."""


class Carrier(Protocol):
    """What brings messages and orders of the store to the nodes."""

    def carry(self, messages: Sequence[Registered]) -> None: ...
    def order(self, node: str, order: SessionTaken) -> None: ...


class _SessionRecord(Struct):
    """A session. `deadline` is None while it lives on `node`. `formers`: earlier sids that are still valid for it, because no
    client may have heard of this one."""

    snapshot: SessionSnapshot
    node: str
    version: int
    ttl: float
    deadline: float | None = None
    formers: tuple[str, ...] = ()


class SharedSessions:
    """All sessions, by sid."""

    def __init__(self, clock: Clock, carrier: Carrier) -> None:
        self._clock = clock
        self._carrier = carrier
        self._records: dict[str, _SessionRecord] = {}
        self._successors: dict[str, str] = {}  # former sid → sid
        self._gone: dict[str, float] = {}  # sid → until when that is remembered
        self._revoked: dict[str, float] = {}  # ids → when
        self._over: list[tuple[str, SessionSnapshot]] = []
        self._untold: dict[str, dict[str, SessionTaken]] = {}  # node → sid → what it has not heard yet

    def kept(self) -> int:
        return sum(record.deadline is not None for record in self._records.values())

    def nodes(self) -> set[str]:
        return {record.node for record in self._records.values() if record.deadline is None}

    def live_on(self, node: str) -> list[str]:
        return [sid for sid, record in self._records.items() if record.node == node and record.deadline is None]

    def write(self, node: str, write: SessionWrite) -> SessionTaken | None:
        record, now = self._records.get(write.sid), self._clock()
        if record is None:
            if write.began is None or write.sid in self._gone:
                return SessionTaken(write.sid)
            if write.began <= self._revoked.get(write.snapshot.ids, 0.0):
                return SessionTaken(write.sid, revoked=True)
            record = self._records[write.sid] = _SessionRecord(write.snapshot, node, 0, write.ttl)
        if write.version <= record.version:
            return None  # a later one was faster
        record.node, record.version = node, write.version
        record.snapshot, record.ttl = write.snapshot, write.ttl
        record.deadline = None if write.live else now + write.ttl
        if write.live:
            self._forget_formers(record)
        elif not write.ttl:
            self._end(write.sid)
        return None

    def save(self, sid: str, snapshot: SessionSnapshot, ttl: float) -> None:
        self._remove(sid)
        self._records[sid] = _SessionRecord(snapshot, "", 0, ttl, self._clock() + ttl)

    def peek(self, sid: str) -> SessionSnapshot | None:
        record = self._records.get(self._successors.get(sid, sid))
        return record.snapshot if record is not None and self._takeable(record) else None

    def take(self, node: str, sid: str, successor: str) -> SessionSnapshot | None:
        current = self._successors.get(sid, sid)
        record = self._records.get(current)
        if record is None or not self._takeable(record):
            return None
        if current == successor:  # the same call again
            return record.snapshot
        if successor in self._gone:  # the same call again, and somebody else took it in between
            return None
        formers = (*record.formers, current)
        lived_on = record.node if record.deadline is None else ""
        self._remove(current)
        if lived_on:
            self._tell(lived_on, SessionTaken(current))
        if successor:
            deadline = self._clock() + record.ttl
            self._records[successor] = _SessionRecord(record.snapshot, node, 0, record.ttl, deadline, formers)
            self._successors.update(dict.fromkeys(formers, successor))
        return record.snapshot

    def revoke(self, ids: str) -> list[tuple[str, SessionSnapshot]]:
        self._revoked[ids] = self._clock()
        found = [(sid, record) for sid, record in self._records.items() if record.snapshot.ids == ids]
        for sid, record in found:
            self._remove(sid)
            if record.deadline is None:
                self._tell(record.node, SessionTaken(sid, revoked=True))
        return [(sid, record.snapshot) for sid, record in found]

    def expired(self, limit: int) -> list[tuple[str, SessionSnapshot]]:
        given, self._over = self._over[:limit], self._over[limit:]
        return given

    def untold(self, node: str, heard: Collection[str]) -> tuple[SessionTaken, ...]:
        orders = self._untold.setdefault(node, {})
        for sid in heard:
            orders.pop(sid, None)
        return tuple(orders.values())

    def node_died(self, node: str) -> None:
        self._untold.pop(node, None)
        now = self._clock()
        for sid in self.live_on(node):
            record = self._records[sid]
            record.deadline = now + record.ttl

    def sweep(self) -> None:
        now = self._clock()
        for sid in [sid for sid, record in self._records.items() if record.deadline is not None and record.deadline <= now]:
            self._end(sid)
        self._gone = {sid: until for sid, until in self._gone.items() if until > now}
        self._revoked = {ids: when for ids, when in self._revoked.items() if when + REMEMBERED > now}

    def _takeable(self, record: _SessionRecord) -> bool:
        return self._clock() < record.deadline if record.deadline is not None else record.ttl > 0

    def _end(self, sid: str) -> None:
        self._over.append((sid, self._records[sid].snapshot))
        self._remove(sid)

    def _remove(self, sid: str) -> None:
        record = self._records.pop(sid, None)
        if record is not None:
            self._forget_formers(record)
            self._gone[sid] = self._clock() + REMEMBERED

    def _forget_formers(self, record: _SessionRecord) -> None:
        for former in record.formers:
            del self._successors[former]
        record.formers = ()

    def _tell(self, node: str, order: SessionTaken) -> None:
        self._untold.setdefault(node, {})[order.sid] = order
        self._carrier.order(node, order)


class SharedPresence:
    """All presence sets, and which node each sid belongs to."""

    def __init__(self, clock: Clock, carrier: Carrier, ttl: float, max_members: int) -> None:
        self._clock = clock
        self._carrier = carrier
        self._ttl = ttl
        self.roster = Roster(max_members)
        self._sids: dict[str, set[str]] = {}  # by node

    def nodes(self) -> set[str]:
        return set(self._sids)

    def join(self, node: str, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        events = self.roster.join(stream, sid, member)
        self.roster.adopt(sid, sid)  # it lives, whatever was thought of its node
        self._sids.setdefault(node, set()).add(sid)
        return self.tell(events)

    def adopt(self, node: str, old_sid: str, new_sid: str) -> dict[str, Member]:
        for sids in self._sids.values():
            sids.discard(old_sid)
        self._sids.setdefault(node, set()).add(new_sid)
        return self.roster.adopt(old_sid, new_sid)

    def node_died(self, node: str) -> None:
        for sid in sorted(self._sids.pop(node, ())):
            self.roster.detach(sid, self._clock() + self._ttl)

    def tell(self, events: list[PresenceEvent]) -> list[PresenceEvent]:
        now = self._clock()
        self._carrier.carry([transient(presence_publication(event), now) for event in events])
        return events


class SharedQueue:
    """What waits to be recorded. Implements `ports.Journal`, as which the streams hand over what they register."""

    instant = True

    def __init__(self, clock: Clock, limit: int) -> None:
        self._clock = clock
        self._limit = limit
        self._rows: deque[Row] = deque()
        self._removed = 0
        self._claim: tuple[str, float] | None = None  # the last one: by which node, until when
        self.dropped = 0

    async def write(self, rows: Sequence[Row]) -> None:
        self.note(rows)

    def note(self, rows: Sequence[Row]) -> None:
        if self._claim is None:
            return
        self._rows += rows
        while len(self._rows) > self._limit:
            self._rows.popleft()
            self._removed += 1
            self.dropped += 1

    def health(self) -> str:
        return ""

    def gauges(self) -> dict[str, float]:
        return {"record_queue_rows": len(self._rows), "record_queue_dropped_rows": self.dropped}

    def claim(self, node: str, ttl: float) -> bool:
        if self._claim is not None and self._claim[0] != node and self._holds(self._claim[0]):
            return False
        self._claim = node, self._clock() + ttl
        return True

    def read(self, limit: int) -> QueuedRows:
        rows = tuple(islice(self._rows, limit))
        return QueuedRows(rows, str(self._removed + len(rows)))

    def remove(self, node: str, piece: QueuedRows) -> bool:
        if not self._holds(node):
            return False
        while self._rows and self._removed < int(piece.mark):
            self._rows.popleft()
            self._removed += 1
        return True

    def add(self, rows: Sequence[Row]) -> bool:
        self.note(rows)
        return self._claim is not None

    def _holds(self, node: str) -> bool:
        return self._claim is not None and self._claim[0] == node and self._clock() < self._claim[1]


class SharedStore:
    """`presence_ttl`: for how long members of a dead node stay."""

    def __init__(
        self,
        rulebook: Rulebook,
        clock: Clock,
        carrier: Carrier,
        presence_ttl: float = 15.0,
        dedup_ttl: float = 300.0,
        dedup_limit: int = 100_000,
        idle_factor: float = 10.0,
        max_members: int = 10_000,
        queue_limit: int = 100_000,
    ) -> None:
        self.clock = clock
        self.carrier = carrier
        self._new_memory = partial(
            MemoryBackend, rulebook, clock, dedup_ttl=dedup_ttl, dedup_limit=dedup_limit, idle_factor=idle_factor
        )
        self._presence_ttl = presence_ttl
        self._max_members = max_members
        self._queue_limit = queue_limit
        self._begun = 0
        self._empty()

    def _empty(self) -> None:
        self.queue = SharedQueue(self.clock, self._queue_limit)
        self.memory = self._new_memory(journal=self.queue)
        self.sessions = SharedSessions(self.clock, self.carrier)
        self.presence = SharedPresence(self.clock, self.carrier, self._presence_ttl, self._max_members)
        self._leases: dict[str, tuple[int, float]] = {}  # by node: its number, and when it ends

    async def start(self) -> None:
        await self.memory.feed.start(self.carrier.carry, _nobody)

    async def lose(self) -> None:
        """As an engine that comes back without its data. Numbers of leases go on: a node must see that it has to begin anew."""
        self._empty()
        await self.start()

    def renew(self, node: str, ttl: float, heard: Collection[str]) -> Renewal:
        now = self.clock()
        number, until = self._leases.get(node, (0, 0.0))
        if until <= now:
            self._end_lease(node)
            self._begun += 1
            number = self._begun
        self._leases[node] = number, now + ttl
        return Renewal(number, self.sessions.untold(node, heard))

    async def sweep(self) -> None:
        now = self.clock()
        holders = self.sessions.nodes() | self.presence.nodes()
        for node in sorted(holders | self._leases.keys()):
            if self._leases.get(node, (0, 0.0))[1] <= now:
                self._end_lease(node)
        self.sessions.sweep()
        await self.memory.sweep()

    def gauges(self) -> dict[str, float]:
        """Of sessions only those that are kept count: those that live are counted where they live."""
        kept = self.sessions.kept()
        return {**self.memory.gauges(), "sessions_kept": kept, "presence_members": self.presence.roster.members}

    def _end_lease(self, node: str) -> None:
        self._leases.pop(node, None)
        self.sessions.node_died(node)
        self.presence.node_died(node)


async def _nobody(order: RemoteDisconnect) -> int:
    return 0


class NodeSessions:
    """Implements `ports.SessionStore` and `ports.Leases` for one node."""

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

    async def revoke(self, ids: str) -> list[tuple[str, SessionSnapshot]]:
        return self._sessions.revoke(ids)

    async def expired(self, limit: int) -> list[tuple[str, SessionSnapshot]]:
        return self._sessions.expired(limit)

    async def abandoned(self) -> list[tuple[str, SessionSnapshot]]:
        return self._sessions.expired(sys.maxsize)

    async def renew(self, ttl: float, heard: Collection[str]) -> Renewal:
        return self._store.renew(self._node, ttl, heard)

    async def write(self, sessions: Sequence[SessionWrite]) -> list[SessionTaken]:
        return [taken for write in sessions if (taken := self._sessions.write(self._node, write))]


class NodePresence:
    """Implements `ports.PresenceStore` for one node."""

    def __init__(self, store: SharedStore, node: str) -> None:
        self._store = store
        self._clock = store.clock
        self._node = node

    @property
    def _presence(self) -> SharedPresence:
        return self._store.presence

    @property
    def _roster(self) -> Roster:
        return self._store.presence.roster

    async def join(self, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        return self._presence.join(self._node, stream, sid, member)

    async def leave(self, stream: str, sid: str) -> list[PresenceEvent]:
        return self._presence.tell(self._roster.leave(stream, sid))

    async def detach(self, sid: str, ttl: float) -> None:
        self._roster.detach(sid, self._clock() + ttl)

    async def adopt(self, old_sid: str, new_sid: str) -> dict[str, Member]:
        return self._presence.adopt(self._node, old_sid, new_sid)

    async def expire(self) -> list[PresenceEvent]:
        return self._presence.tell(self._roster.expire(self._clock()))

    async def page(self, stream: str, after: str, limit: int) -> PresencePage:
        return self._roster.page(stream, after, limit)


class NodeQueue:
    """Implements `ports.RecordQueue` for one node."""

    def __init__(self, store: SharedStore, node: str) -> None:
        self._store = store
        self._node = node

    @property
    def _queue(self) -> SharedQueue:
        return self._store.queue

    async def claim(self, ttl: float) -> bool:
        return self._queue.claim(self._node, ttl)

    async def read(self, limit: int) -> QueuedRows:
        return self._queue.read(limit)

    async def remove(self, piece: QueuedRows) -> bool:
        return self._queue.remove(self._node, piece)

    async def add(self, rows: Sequence[Row]) -> bool:
        return self._queue.add(rows)

    def gauges(self) -> dict[str, float]:
        return self._queue.gauges()

"""Implements `ports.SessionStore`, and `write` of `ports.Leases`: one record per session.

Invariant: every change of a session names the revision that the node has seen, so only one of several nodes succeeds. A removed
session leaves a `Gone` record for a while.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from math import inf

import msgspec
from msgspec.structs import replace

from ropewalk.adapters.backends.nats.names import token
from ropewalk.adapters.backends.nats.session_copy import (
    REMEMBERED_SECONDS,
    Gone,
    Kept,
    Revoked,
    SessionCopy,
    SessionRecord,
    TakenOrder,
    order_key,
    session_key,
)
from ropewalk.adapters.backends.nats.table import Change, Table
from ropewalk.model.errors import LimitReached, Unanswered, Unavailable
from ropewalk.model.limits import StoreLimits
from ropewalk.model.sessions import SessionSnapshot, SessionTaken, SessionWrite
from ropewalk.ports import Clock

logger = logging.getLogger("ropewalk.nats")

EXTRA_LOOKUPS = 1000
"""Additional sessions that one call may try: other nodes may take some first."""

MAX_CONCURRENT_WRITES = 64


_encode = msgspec.msgpack.encode
_snapshots = msgspec.msgpack.Decoder(SessionSnapshot)


class NatsSessions:
    """Changes the session records of the cluster. `copy` answers all reads."""

    def __init__(
        self,
        table: Table,
        node: str,
        clock: Clock,
        limits: StoreLimits,
        on_taken: Callable[[SessionTaken], None],
    ) -> None:
        self._table = table
        self._node = node
        self._clock = clock
        self._limits = limits
        self.copy = SessionCopy(node, clock, on_taken)
        self._unreported: dict[str, SessionRecord] = {}  # possibly removed by this node, and not returned to a caller yet

    def clear(self) -> None:
        self.copy.clear()
        self._unreported.clear()

    # --- the port -----------------------------------------------------------------------------------------------------

    async def save(self, sid: str, snapshot: SessionSnapshot, ttl: float) -> None:
        record = SessionRecord(sid, "", snapshot.ids, self._encoded(snapshot), 0, ttl, self._clock() + ttl)
        await self._table.write([_kept_change(record, checked=False)])

    async def peek(self, sid: str) -> SessionSnapshot | None:
        await self._table.catch_up()
        record = self.copy.takeable(sid)
        return None if record is None else _snapshots.decode(record.snapshot)

    async def take(self, sid: str, successor: str = "") -> SessionSnapshot | None:
        await self._table.catch_up()
        found: list[SessionRecord] = []

        def decide() -> Sequence[Change]:
            found.clear()
            record = self.copy.takeable(sid)
            if record is None or (successor in self.copy.gone and record.sid != successor):
                return ()  # a retry, and another session has taken it over since
            found.append(record)
            return () if record.sid == successor else self._take_changes(record, successor)

        await self._table.update(decide)
        return _snapshots.decode(found[0].snapshot) if found else None

    def _take_changes(self, record: SessionRecord, successor: str) -> list[Change]:
        taken = SessionTaken(record.sid)
        changes = [self._gone_change(taken)]
        if successor:
            heir = SessionRecord(
                successor,
                self._node,
                record.ids,
                record.snapshot,
                0,
                record.ttl,
                self._clock() + record.ttl,
                (*record.formers, record.sid),
                self.copy.origin(record),
            )
            changes.append(_kept_change(heir))
        return changes + self._order_changes(record, taken)

    async def revoke(self, ids: str, reconnect: bool) -> list[tuple[str, SessionSnapshot]]:
        """Writes the revocation first, so that no node can resume such a session. Then removes the sessions."""
        marker = Change(
            f"r.{token(ids)}", _encode(Revoked(ids, self._clock(), reconnect)), checked=False, ttl=REMEMBERED_SECONDS
        )
        await self._table.write([marker])
        removed: dict[str, SessionRecord] = {}
        try:
            while revoked := self.copy.of_revoked(ids):
                for sid in revoked:
                    order = SessionTaken(sid, True, reconnect)
                    if (record := await self._end(sid, self.copy.is_revoked, order)) is not None:
                        removed[sid] = record
        except Unavailable:
            self._unreported.update(removed)
            raise
        return [(sid, _snapshots.decode(record.snapshot)) for sid, record in removed.items()]

    async def take_expired(self, limit: int) -> list[tuple[str, SessionSnapshot]]:
        """The returned sessions are already removed, so an error after the first one is logged and not raised."""
        await self._table.catch_up()
        given = self._ended_earlier(limit)
        due = self.copy.deadlines.due(self._clock(), limit + EXTRA_LOOKUPS)
        early = set(self.copy.deadlines.due(inf, min(limit, self._count_excess() - len(due))))
        due += early
        try:
            while due and len(given) < limit:
                away = self.copy.is_away if due[-1] in early else self.copy.is_over
                record = await self._end(due[-1], away)
                sid = due.pop()
                if record is not None:  # also a revoked one: only who removes it reports it
                    given.append((sid, _snapshots.decode(record.snapshot)))
        except Unavailable as error:
            if not given:
                raise
            logger.debug("expired sessions are left for the next call", extra={"count": len(due), "reason": str(error)})
        finally:
            for sid in due:  # not removed
                if (left := self.copy.records.get(sid)) is not None and left.deadline is not None:
                    self.copy.deadlines.set(sid, left.deadline)
        return given

    def _ended_earlier(self, limit: int) -> list[tuple[str, SessionSnapshot]]:
        """Sessions that this node removed although the write got no answer. The write may still reach NATS later."""
        given: list[tuple[str, SessionSnapshot]] = []
        for sid, record in list(self._unreported.items()):
            if len(given) < limit and sid not in self.copy.records:
                del self._unreported[sid]
                if (gone := self.copy.gone.get(sid)) is not None and gone.ended_by == self._node:
                    given.append((sid, _snapshots.decode(record.snapshot)))
        return given

    async def take_abandoned(self) -> list[tuple[str, SessionSnapshot]]:
        return await self.take_expired(sys.maxsize)

    def _count_excess(self) -> int:
        """The number of kept sessions above the limits, to end before they expire."""
        kept, kept_bytes, limits = self.copy.kept, self.copy.kept_bytes, self._limits
        count = kept - limits.sessions_limit
        if kept_bytes > limits.max_sessions_size:
            count = max(count, 1 + (kept_bytes - limits.max_sessions_size) * kept // kept_bytes)
        return count

    async def _remove(
        self, sid: str, still: Callable[[SessionRecord], bool], order: SessionTaken | None = None
    ) -> SessionRecord | None:
        """Returns the session if this node removed it. `order`: the request to the node where it is live."""
        found: list[SessionRecord] = []

        def decide() -> Sequence[Change]:
            found.clear()
            record = self.copy.records.get(sid)
            if record is None or not still(record):
                return ()
            found.append(record)
            gone = self._gone_change(order or SessionTaken(sid), ended_by=self._node)
            return [gone, *(self._order_changes(record, order) if order is not None else ())]

        await self._table.update(decide)
        return found[0] if found else None

    async def _end(
        self, sid: str, still: Callable[[SessionRecord], bool], order: SessionTaken | None = None
    ) -> SessionRecord | None:
        """Remove it and return it to the caller. If the write gets no answer, `_ended_earlier` returns it later."""
        record = self.copy.records.get(sid)
        try:
            removed = await self._remove(sid, still, order)
        except Unanswered:
            if record is not None:
                self._unreported[sid] = record
            raise
        self._unreported.pop(sid, None)
        return removed

    # --- leases -------------------------------------------------------------------------------------------------------

    async def write(self, sessions: Sequence[SessionWrite]) -> list[SessionTaken]:
        taken: list[SessionTaken | None] = []
        for begin in range(0, len(sessions), MAX_CONCURRENT_WRITES):
            taken += await asyncio.gather(*map(self._write, sessions[begin : begin + MAX_CONCURRENT_WRITES]))
        return [order for order in taken if order is not None]

    async def _write(self, write: SessionWrite) -> SessionTaken | None:
        if write.sid not in self.copy.records:
            await self._table.catch_up()
        snapshot, ttl = self._fit_to_limits(write)
        refused: list[SessionTaken] = []

        def decide() -> Sequence[Change]:
            refused.clear()
            record = self.copy.records.get(write.sid)
            if record is None:
                if (refusal := self._refusal(write)) is not None:
                    refused.append(refusal)
                    return ()
                record = SessionRecord(write.sid, self._node, write.snapshot.ids, snapshot, 0, ttl)
            elif (revoked := self.copy.revocation(record)) is not None:
                refused.append(SessionTaken(write.sid, True, revoked.reconnect))
                return ()
            elif self.copy.is_over(record):
                refused.append(SessionTaken(write.sid))
                return ()
            if write.version <= record.version:
                return ()  # a later write arrived first
            return [_kept_change(self._next_record(record, write, snapshot, ttl))]

        sequence = await self._table.update(decide)
        record = self.copy.records.get(write.sid)
        if sequence and record is not None and (revoked := self._revoked_before(write, sequence)) is not None:
            # The revocation was written between `decide` and this write, and its node may not have seen this session.
            removed = await self._remove(write.sid, lambda record: True)
            return SessionTaken(write.sid, True, revoked.reconnect, stored=removed is None)
        return refused[0] if refused else None

    def _refusal(self, write: SessionWrite) -> SessionTaken | None:
        """Why a session without a record cannot be written."""
        if (gone := self.copy.gone.get(write.sid)) is not None:
            return gone.order
        if write.began is None:
            return SessionTaken(write.sid, stored=False)
        revoked = self.copy.find_revocation(write.snapshot.ids, write.began)
        return None if revoked is None else SessionTaken(write.sid, True, revoked.reconnect, stored=False)

    def _revoked_before(self, write: SessionWrite, sequence: int) -> Revoked | None:
        """The revocation of a session that was new to the store, if written before `sequence`."""
        if write.began is None or (revoked := self.copy.find_revocation(write.snapshot.ids, write.began)) is None:
            return None
        return revoked if self.copy.revoked[revoked.ids][1] < sequence else None

    def _fit_to_limits(self, write: SessionWrite) -> tuple[bytes, float]:
        """The snapshot and TTL to write. A session that is too large cannot be resumed."""
        snapshot, ttl = _encode(write.snapshot), write.ttl
        if ttl and self._too_large(snapshot):
            logger.warning("a session is too large to be resumed", extra={"bytes": len(snapshot)})
            ttl = 0.0
        if len(snapshot) > self._table.max_record_bytes:  # keep its identity for the disconnect call
            snapshot = _encode(replace(write.snapshot, subscriptions={}, members={}))
        return snapshot, ttl

    def _next_record(self, record: SessionRecord, write: SessionWrite, snapshot: bytes, ttl: float) -> SessionRecord:
        return SessionRecord(
            write.sid,
            self._node,
            write.snapshot.ids,
            snapshot,
            write.version,
            ttl,
            None if write.live else self._clock() + ttl,
            () if write.live else record.formers,
            self.copy.origin(record),
        )

    def acknowledge(self, node: str, received: Sequence[str]) -> list[Change]:
        """The removals of requests that a node has received."""
        orders = self.copy.orders.get(node, {})
        keys = (order_key(node, sid) for sid in received)
        return [Change(key, checked=False) for key in keys if key in orders]

    async def node_died(self, node: str, lives: Callable[[], bool]) -> None:
        for change in self.acknowledge(node, [order.sid for order in self.copy.pending_orders(node)]):
            await self._table.write([change])
        await self.leave_behind(node, lives)

    async def leave_behind(self, node: str, lives: Callable[[], bool], grace: float = 0.0) -> None:
        """Keep the sessions of a node for `grace` plus their TTL, unless the node `lives` again."""
        sids = sorted(self.copy.of_node.get(node, ()))
        for begin in range(0, len(sids), MAX_CONCURRENT_WRITES):
            batch = sids[begin : begin + MAX_CONCURRENT_WRITES]
            await asyncio.gather(*(self._leave_behind(sid, node, lives, grace) for sid in batch))

    async def _leave_behind(self, sid: str, node: str, lives: Callable[[], bool], grace: float) -> None:
        def decide() -> Sequence[Change]:
            record = self.copy.records.get(sid)
            if record is None or record.node != node or record.deadline is not None or lives():
                return ()
            return [_kept_change(replace(record, deadline=self._clock() + grace + record.ttl, origin=self.copy.origin(record)))]

        await self._table.update(decide)

    def _gone_change(self, order: SessionTaken, ended_by: str = "") -> Change:
        return Change(
            session_key(order.sid), _encode(Gone(order, self._clock() + REMEMBERED_SECONDS, ended_by)), ttl=REMEMBERED_SECONDS
        )

    def _order_changes(self, record: SessionRecord, order: SessionTaken) -> list[Change]:
        """The request to the node where the session is live, if it is."""
        if record.deadline is not None:
            return []
        return [Change(order_key(record.node, record.sid), _encode(TakenOrder(record.node, order)), checked=False)]

    def _encoded(self, snapshot: SessionSnapshot) -> bytes:
        data = _encode(snapshot)
        if self._too_large(data):
            raise LimitReached(f"a session of {len(data)} bytes is too large to be kept")
        return data

    def _too_large(self, snapshot: bytes) -> bool:
        return len(snapshot) > min(self._limits.max_session_size, self._table.max_record_bytes)


def _kept_change(record: SessionRecord, checked: bool = True) -> Change:
    return Change(session_key(record.sid), _encode(Kept(record)), checked)

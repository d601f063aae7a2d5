"""Implements `ports.SessionStore`, and `write` of `ports.Leases`: one record a session.

Invariant: a session is changed, taken and removed by naming the record that was seen, so of several nodes one does it. One that
was given away leaves a record that says so for a while.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from math import inf

import msgspec
from msgspec.structs import replace

from ropewalk.adapters.backends.nats.names import token
from ropewalk.adapters.backends.nats.session_records import (
    Gone,
    Kept,
    Revoked,
    SessionRecord,
    TakenOrder,
    order_key,
    session_key,
)
from ropewalk.adapters.backends.nats.table import Applied, Change, Table
from ropewalk.core.expiry import Expiry
from ropewalk.model.errors import LimitReached
from ropewalk.model.sessions import SessionSnapshot, SessionTaken, SessionWrite
from ropewalk.ports import Clock

logger = logging.getLogger("ropewalk.nats")

REMEMBERED = 60.0
"""Seconds for which a sid is known to be gone, and an identity to be revoked. Longer than a write may be repeated."""

LOOKED_AT = 1000
"""Sessions that one call may look at beyond those that it gives out: others may have been faster."""

WRITTEN_AT_ONCE = 64


_entries = msgspec.msgpack.Decoder(Kept | Gone)
_encode = msgspec.msgpack.encode
_snapshots = msgspec.msgpack.Decoder(SessionSnapshot)


class NatsSessions:
    """`limit` and `max_total`: how many sessions may be kept whose connection is gone, and how many bytes of them; `max_size`
    of one."""

    def __init__(
        self,
        table: Table,
        node: str,
        clock: Clock,
        limit: int,
        max_size: int,
        max_total: int,
        tell: Callable[[SessionTaken], None],
    ) -> None:
        self._table = table
        self._node = node
        self._clock = clock
        self._limit = limit
        self._max_size = max_size
        self._max_total = max_total
        self._tell = tell
        self.clear()

    def clear(self) -> None:
        self._records: dict[str, SessionRecord] = {}
        self._sequences: dict[str, int] = {}
        self._successors: dict[str, str] = {}  # former sid → sid
        self._gone: dict[str, float] = {}
        self._revoked: dict[str, tuple[float, int]] = {}  # ids → when, and the sequence of that
        self._of_ids: dict[str, set[str]] = {}
        self._of_node: dict[str, set[str]] = {}  # those that live there
        self._orders: dict[str, dict[str, SessionTaken]] = {}  # by node: what it has not heard yet
        self._deadlines = Expiry()
        self._kept = self._kept_bytes = 0  # of those whose connection is gone, and of some that are over

    def gauges(self) -> dict[str, float]:
        kept = [record for record in self._records.values() if record.deadline is not None and record.deadline > self._clock()]
        return {"sessions_kept": len(kept), "sessions_kept_bytes": sum(len(record.snapshot) for record in kept)}

    def nodes(self) -> set[str]:
        return {node for node, sids in self._of_node.items() if sids}

    # --- the copy -----------------------------------------------------------------------------------------------------

    def apply(self, applied: Applied) -> None:
        entry = _entries.decode(applied.data)
        if isinstance(entry, Gone):
            self._forget(entry.sid)
            self._gone[entry.sid] = entry.until
            return
        record = entry.record
        self._forget(record.sid)
        self._gone.pop(record.sid, None)
        self._records[record.sid] = record
        self._sequences[record.sid] = applied.seq
        self._successors.update(dict.fromkeys(record.formers, record.sid))
        self._of_ids.setdefault(record.ids, set()).add(record.sid)
        if record.deadline is None:
            self._of_node.setdefault(record.node, set()).add(record.sid)
        else:
            self._deadlines.set(record.sid, record.deadline)
            self._kept += 1
            self._kept_bytes += len(record.snapshot)

    def _forget(self, sid: str) -> None:
        record = self._records.pop(sid, None)
        if record is None:
            return
        self._deadlines.discard(sid)
        self._sequences.pop(sid, None)
        if record.deadline is not None:
            self._kept -= 1
            self._kept_bytes -= len(record.snapshot)
        for former in record.formers:
            if self._successors.get(former) == sid:
                del self._successors[former]
        for index, key in ((self._of_ids, record.ids), (self._of_node, record.node)):
            if key in index:
                index[key].discard(sid)
                if not index[key]:
                    del index[key]

    def apply_revoked(self, applied: Applied) -> None:
        if applied.data:
            revoked = msgspec.msgpack.decode(applied.data, type=Revoked)
            self._revoked[revoked.ids] = revoked.when, applied.seq

    def apply_order(self, applied: Applied) -> None:
        if not applied.data:
            self._heard(applied.key)
            return
        order = msgspec.msgpack.decode(applied.data, type=TakenOrder)
        taken = SessionTaken(order.sid, order.revoked)
        self._orders.setdefault(order.node, {})[applied.key] = taken
        if order.node == self._node and applied.fresh:
            self._tell(taken)

    def _heard(self, key: str) -> None:
        for node, orders in list(self._orders.items()):
            if orders.pop(key, None) is not None and not orders:
                del self._orders[node]

    def forget_old(self) -> None:
        now = self._clock()
        self._gone = {sid: until for sid, until in self._gone.items() if until > now}
        self._revoked = {ids: at for ids, at in self._revoked.items() if at[0] + REMEMBERED > now}

    # --- the port -----------------------------------------------------------------------------------------------------

    async def save(self, sid: str, snapshot: SessionSnapshot, ttl: float) -> None:
        record = SessionRecord(sid, "", snapshot.ids, self._encoded(snapshot), 0, ttl, self._clock() + ttl)
        await self._table.write([_kept(record, checked=False)])

    async def peek(self, sid: str) -> SessionSnapshot | None:
        await self._table.catch_up()
        record = self._takeable(sid)
        return None if record is None else _snapshots.decode(record.snapshot)

    async def take(self, sid: str, successor: str = "") -> SessionSnapshot | None:
        await self._table.catch_up()
        found: list[SessionRecord] = []

        def decide() -> Sequence[Change]:
            found.clear()
            record = self._takeable(sid)
            if record is None or (successor in self._gone and record.sid != successor):
                return ()  # with a successor that is gone: the same call again, and somebody else took it in between
            found.append(record)
            return () if record.sid == successor else self._taking(record, successor)

        await self._table.settle(decide)
        return _snapshots.decode(found[0].snapshot) if found else None

    def _taking(self, record: SessionRecord, successor: str) -> list[Change]:
        changes = [self._gone_now(record.sid)]
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
                self._origin(record),
            )
            changes.append(_kept(heir))
        return changes + self._order(record, revoked=False)

    async def revoke(self, ids: str) -> list[tuple[str, SessionSnapshot]]:
        """First it is written that the identity is revoked: nobody gets such a session from then on. Then they are removed."""
        marker = Change(f"r.{token(ids)}", _encode(Revoked(ids, self._clock())), checked=False, ttl=REMEMBERED)
        await self._table.write([marker])
        removed: list[tuple[str, SessionSnapshot]] = []
        while revoked := [sid for sid in sorted(self._of_ids.get(ids, ())) if self._is_revoked(self._records[sid])]:
            for sid in revoked:
                record = await self._remove(sid, self._is_revoked, order=True)
                if record is not None:
                    removed.append((sid, _snapshots.decode(record.snapshot)))
        return removed

    async def expired(self, limit: int) -> list[tuple[str, SessionSnapshot]]:
        await self._table.catch_up()
        given: list[tuple[str, SessionSnapshot]] = []
        due = self._deadlines.due(self._clock(), limit + LOOKED_AT)
        early = set(self._deadlines.due(inf, min(limit, self._too_many() - len(due))))
        due += early
        try:
            while due and len(given) < limit:
                away = self._is_away if due[-1] in early else self._is_over
                record = await self._remove(due[-1], away)
                sid = due.pop()
                if record is not None and not self._is_revoked(record):
                    given.append((sid, _snapshots.decode(record.snapshot)))
        finally:
            for sid in due:  # those that could not be had now
                if (left := self._records.get(sid)) is not None and left.deadline is not None:
                    self._deadlines.set(sid, left.deadline)
        return given

    async def abandoned(self) -> list[tuple[str, SessionSnapshot]]:
        return await self.expired(sys.maxsize)

    def _too_many(self) -> int:
        """How many of those that are kept have to end before their time."""
        count = self._kept - self._limit
        if self._kept_bytes > self._max_total:
            count = max(count, 1 + (self._kept_bytes - self._max_total) * self._kept // self._kept_bytes)
        return count

    async def _remove(self, sid: str, still: Callable[[SessionRecord], bool], order: bool = False) -> SessionRecord | None:
        """The session, if this node was the one to remove it."""
        found: list[SessionRecord] = []

        def decide() -> Sequence[Change]:
            found.clear()
            record = self._records.get(sid)
            if record is None or not still(record):
                return ()
            found.append(record)
            return [self._gone_now(sid), *(self._order(record, revoked=True) if order else ())]

        await self._table.settle(decide)
        return found[0] if found else None

    # --- leases -------------------------------------------------------------------------------------------------------

    async def write(self, sessions: Sequence[SessionWrite]) -> list[SessionTaken]:
        taken: list[SessionTaken | None] = []
        for begin in range(0, len(sessions), WRITTEN_AT_ONCE):
            taken += await asyncio.gather(*map(self._write, sessions[begin : begin + WRITTEN_AT_ONCE]))
        return [order for order in taken if order is not None]

    async def _write(self, write: SessionWrite) -> SessionTaken | None:
        if write.sid not in self._records:
            await self._table.catch_up()
        snapshot, ttl = self._fitting(write)
        refused: list[SessionTaken] = []

        def decide() -> Sequence[Change]:
            refused.clear()
            record = self._records.get(write.sid)
            if record is None:
                if (refusal := self._refusal(write)) is not None:
                    refused.append(refusal)
                    return ()
                record = SessionRecord(write.sid, self._node, write.snapshot.ids, snapshot, 0, ttl)
            elif (revoked := self._is_revoked(record)) or self._is_over(record):
                refused.append(SessionTaken(write.sid, revoked))
                return ()
            if write.version <= record.version:
                return ()  # a later one was faster
            return [_kept(self._written(record, write, snapshot, ttl))]

        sequence = await self._table.settle(decide)
        record = self._records.get(write.sid)
        if sequence and write.began is not None and record is not None and self._revoked_since(write, sequence):
            # The order came between the decision and the write, and whoever gave it may not have seen this session.
            await self._remove(write.sid, lambda record: True)
            return SessionTaken(write.sid, revoked=True)
        return refused[0] if refused else None

    def _refusal(self, write: SessionWrite) -> SessionTaken | None:
        """Why a session that is not there cannot be written."""
        if write.began is None or write.sid in self._gone:
            return SessionTaken(write.sid)
        when, _ = self._revoked.get(write.snapshot.ids, (0.0, 0))
        return SessionTaken(write.sid, revoked=True) if write.began <= when else None

    def _revoked_since(self, write: SessionWrite, sequence: int) -> bool:
        when, revoked_at = self._revoked.get(write.snapshot.ids, (0.0, 0))
        return write.began is not None and write.began <= when and revoked_at < sequence

    def _fitting(self, write: SessionWrite) -> tuple[bytes, float]:
        """What is written of it, and for how long it may be resumed."""
        snapshot, ttl = _encode(write.snapshot), write.ttl
        if ttl and self._too_large(snapshot):
            logger.warning("a session is too large to be resumed", extra={"bytes": len(snapshot)})
            ttl = 0.0
        if len(snapshot) > self._table.most_bytes:  # who it was is still told at its end
            snapshot = _encode(replace(write.snapshot, subscriptions={}, members={}))
        return snapshot, ttl

    def _written(self, record: SessionRecord, write: SessionWrite, snapshot: bytes, ttl: float) -> SessionRecord:
        return SessionRecord(
            write.sid,
            self._node,
            write.snapshot.ids,
            snapshot,
            write.version,
            ttl,
            None if write.live else self._clock() + ttl,
            () if write.live else record.formers,
            self._origin(record),
        )

    def untold(self, node: str) -> list[SessionTaken]:
        return list(self._orders.get(node, {}).values())

    def hearing(self, node: str, heard: Sequence[str]) -> list[Change]:
        """What removes orders that a node has heard."""
        orders = self._orders.get(node, {})
        keys = (order_key(node, sid) for sid in heard)
        return [Change(key, checked=False) for key in keys if key in orders]

    async def node_died(self, node: str, lives: Callable[[], bool]) -> None:
        """Its sessions are kept for their time from now on, unless it `lives` again by then."""
        for change in self.hearing(node, [order.sid for order in self.untold(node)]):
            await self._table.write([change])
        sids = sorted(self._of_node.get(node, ()))
        for begin in range(0, len(sids), WRITTEN_AT_ONCE):
            await asyncio.gather(*(self._leave_behind(sid, node, lives) for sid in sids[begin : begin + WRITTEN_AT_ONCE]))

    async def _leave_behind(self, sid: str, node: str, lives: Callable[[], bool]) -> None:
        def decide() -> Sequence[Change]:
            record = self._records.get(sid)
            if record is None or record.node != node or record.deadline is not None or lives():
                return ()
            return [_kept(replace(record, deadline=self._clock() + record.ttl, origin=self._origin(record)))]

        await self._table.settle(decide)

    # --- decisions ----------------------------------------------------------------------------------------------------

    def _takeable(self, sid: str) -> SessionRecord | None:
        record = self._records.get(self._successors.get(sid, sid))
        if record is None or self._is_revoked(record):
            return None
        alive = self._clock() < record.deadline if record.deadline is not None else record.ttl > 0
        return record if alive else None

    def _is_over(self, record: SessionRecord) -> bool:
        return record.deadline is not None and record.deadline <= self._clock()

    def _is_away(self, record: SessionRecord) -> bool:
        return record.deadline is not None

    def _origin(self, record: SessionRecord) -> int:
        return record.origin or self._sequences.get(record.sid, 0)

    def _is_revoked(self, record: SessionRecord) -> bool:
        """Whether an order came after it, or what it comes from, was written."""
        at = self._revoked.get(record.ids)
        return at is not None and self._origin(record) < at[1]

    def _gone_now(self, sid: str) -> Change:
        return Change(session_key(sid), _encode(Gone(sid, self._clock() + REMEMBERED)), ttl=REMEMBERED)

    def _order(self, record: SessionRecord, revoked: bool) -> list[Change]:
        """That it is taken, to the node where it lives."""
        if record.deadline is not None:
            return []
        order = TakenOrder(record.node, record.sid, revoked)
        return [Change(order_key(record.node, record.sid), _encode(order), checked=False)]

    def _encoded(self, snapshot: SessionSnapshot) -> bytes:
        data = _encode(snapshot)
        if self._too_large(data):
            raise LimitReached(f"a session of {len(data)} bytes is too large to be kept")
        return data

    def _too_large(self, snapshot: bytes) -> bool:
        return len(snapshot) > min(self._max_size, self._table.most_bytes)


def _kept(record: SessionRecord, checked: bool = True) -> Change:
    return Change(session_key(record.sid), _encode(Kept(record)), checked)

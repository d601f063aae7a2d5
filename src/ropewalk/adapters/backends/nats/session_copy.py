"""What is known here of the sessions of the cluster: a copy of their records, with what is looked up in it."""

from collections.abc import Callable

import msgspec
from msgspec import Struct

from ropewalk.adapters.backends.nats.names import token
from ropewalk.adapters.backends.nats.table import Applied
from ropewalk.core.expiry import Expiry
from ropewalk.model.sessions import SessionTaken
from ropewalk.ports import Clock


class SessionRecord(Struct, frozen=True):
    """`deadline` is None while the session lives on `node`. `formers`: earlier sids that are still valid for it, because no
    client may have heard of this one. `origin`: the sequence of the first record that it comes from, 0 for this one itself."""

    sid: str
    node: str
    ids: str
    snapshot: bytes
    version: int
    ttl: float
    deadline: float | None = None
    formers: tuple[str, ...] = ()
    origin: int = 0


class Gone(Struct, frozen=True, tag=True):
    """`ended_by`: the node that removed it; "" if another session took it over. `order`: the request to its node."""

    order: SessionTaken
    until: float
    ended_by: str = ""


class Kept(Struct, frozen=True, tag=True):
    record: SessionRecord


class Revoked(Struct, frozen=True):
    ids: str
    when: float
    reconnect: bool


class TakenOrder(Struct, frozen=True):
    node: str
    order: SessionTaken


def session_key(sid: str) -> str:
    return f"s.{token(sid)}"


def order_key(node: str, sid: str) -> str:
    return f"o.{token(node)}.{token(sid)}"


REMEMBERED = 60.0
"""Seconds for which a sid is known to be gone, and an identity to be revoked. Longer than a write may be repeated."""

_entries = msgspec.msgpack.Decoder(Kept | Gone)


class SessionCopy:
    """`tell` hears of sessions of this `node` that others took."""

    def __init__(self, node: str, clock: Clock, tell: Callable[[SessionTaken], None]) -> None:
        self._node = node
        self._clock = clock
        self._tell = tell
        self.clear()

    def clear(self) -> None:
        self.records: dict[str, SessionRecord] = {}
        self.sequences: dict[str, int] = {}
        self.successors: dict[str, str] = {}  # former sid → sid
        self.gone: dict[str, Gone] = {}
        self.revoked: dict[str, tuple[Revoked, int]] = {}  # by ids, with its sequence
        self.of_ids: dict[str, set[str]] = {}
        self.of_node: dict[str, set[str]] = {}  # those that live there
        self.orders: dict[str, dict[str, SessionTaken]] = {}  # by node: what it has not heard yet
        self.deadlines = Expiry()
        self.kept = self.kept_bytes = 0  # of those whose connection is gone, and of some that are over

    def gauges(self) -> dict[str, float]:
        kept = [record for record in self.records.values() if record.deadline is not None and record.deadline > self._clock()]
        return {"sessions_kept": len(kept), "sessions_kept_bytes": sum(len(record.snapshot) for record in kept)}

    def nodes(self) -> set[str]:
        return {node for node, sids in self.of_node.items() if sids}

    # --- records come -------------------------------------------------------------------------------------------------

    def apply(self, applied: Applied) -> None:
        entry = _entries.decode(applied.data)
        if isinstance(entry, Gone):
            self._forget(entry.order.sid)
            self.gone[entry.order.sid] = entry
            return
        record = entry.record
        self._forget(record.sid)
        self.gone.pop(record.sid, None)
        self.records[record.sid] = record
        self.sequences[record.sid] = applied.seq
        self.successors.update(dict.fromkeys(record.formers, record.sid))
        self.of_ids.setdefault(record.ids, set()).add(record.sid)
        if record.deadline is None:
            self.of_node.setdefault(record.node, set()).add(record.sid)
        else:
            self.deadlines.set(record.sid, record.deadline)
            self.kept += 1
            self.kept_bytes += len(record.snapshot)

    def _forget(self, sid: str) -> None:
        record = self.records.pop(sid, None)
        if record is None:
            return
        self.deadlines.discard(sid)
        self.sequences.pop(sid, None)
        if record.deadline is not None:
            self.kept -= 1
            self.kept_bytes -= len(record.snapshot)
        for former in record.formers:
            if self.successors.get(former) == sid:
                del self.successors[former]
        for index, key in ((self.of_ids, record.ids), (self.of_node, record.node)):
            if key in index:
                index[key].discard(sid)
                if not index[key]:
                    del index[key]

    def apply_revoked(self, applied: Applied) -> None:
        if applied.data:
            revoked = msgspec.msgpack.decode(applied.data, type=Revoked)
            self.revoked[revoked.ids] = revoked, applied.seq

    def apply_order(self, applied: Applied) -> None:
        if not applied.data:
            self._heard(applied.key)
            return
        told = msgspec.msgpack.decode(applied.data, type=TakenOrder)
        self.orders.setdefault(told.node, {})[applied.key] = told.order
        if told.node == self._node and applied.fresh:
            self._tell(told.order)

    def _heard(self, key: str) -> None:
        for node, orders in list(self.orders.items()):
            if orders.pop(key, None) is not None and not orders:
                del self.orders[node]

    def forget_old(self) -> None:
        now = self._clock()
        self.gone = {sid: gone for sid, gone in self.gone.items() if gone.until > now}
        self.revoked = {ids: at for ids, at in self.revoked.items() if at[0].when + REMEMBERED > now}

    # --- what follows from them ---------------------------------------------------------------------------------------

    def untold(self, node: str) -> list[SessionTaken]:
        return list(self.orders.get(node, {}).values())

    def takeable(self, sid: str) -> SessionRecord | None:
        record = self.records.get(self.successors.get(sid, sid))
        if record is None or record.ttl <= 0 or self.is_revoked(record) or self.is_over(record):
            return None
        return record

    def is_over(self, record: SessionRecord) -> bool:
        return record.deadline is not None and record.deadline <= self._clock()

    def is_away(self, record: SessionRecord) -> bool:
        return record.deadline is not None

    def origin(self, record: SessionRecord) -> int:
        return record.origin or self.sequences.get(record.sid, 0)

    def of_revoked(self, ids: str) -> list[str]:
        """The sessions of this identity that were there when it was revoked."""
        return [sid for sid in sorted(self.of_ids.get(ids, ())) if self.is_revoked(self.records[sid])]

    def is_revoked(self, record: SessionRecord) -> bool:
        """Whether an order came after it, or what it comes from, was written."""
        return self.revocation(record) is not None

    def revocation(self, record: SessionRecord) -> Revoked | None:
        revoked, sequence = self.revoked.get(record.ids, (None, 0))
        return revoked if self.origin(record) < sequence else None

    def revocation_of(self, ids: str, began: float) -> Revoked | None:
        """The order for a session that began then."""
        revoked, _ = self.revoked.get(ids, (None, 0))
        return revoked if revoked is not None and began <= revoked.when else None

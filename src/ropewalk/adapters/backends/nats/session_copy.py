"""This node's copy of the session records of the cluster, with its indexes."""

from collections.abc import Callable

import msgspec
from msgspec import Struct

from ropewalk.adapters.backends.nats.names import token
from ropewalk.adapters.backends.nats.table import Applied
from ropewalk.core.expiry import Expiry
from ropewalk.model.sessions import SessionTaken
from ropewalk.ports import Clock


class SessionRecord(Struct, frozen=True):
    """`deadline` is None while the session is live on `node`. `formers`: earlier sids that are still valid, because the client
    may not have received this one. `origin`: the sequence of the first record of the session, 0 if it is this one."""

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
    """Replaces the record of a removed session. `ended_by`: the node that removed it; "" if another session took it over.
    `order`: the request to its node."""

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


REMEMBERED_SECONDS = 60.0
"""How long `Gone` and `Revoked` records are kept, in seconds. Longer than any write is retried."""

_entries = msgspec.msgpack.Decoder(Kept | Gone)


class SessionCopy:
    """Calls `on_taken` for live sessions of this `node` that another node took or revoked."""

    def __init__(self, node: str, clock: Clock, on_taken: Callable[[SessionTaken], None]) -> None:
        self._node = node
        self._clock = clock
        self._on_taken = on_taken
        self.clear()

    def clear(self) -> None:
        self.records: dict[str, SessionRecord] = {}
        self.sequences: dict[str, int] = {}
        self.successors: dict[str, str] = {}  # former sid → sid
        self.gone: dict[str, Gone] = {}
        self.revoked: dict[str, tuple[Revoked, int]] = {}  # by ids, with its sequence
        self.of_ids: dict[str, set[str]] = {}
        self.of_node: dict[str, set[str]] = {}  # live sessions only
        self.orders: dict[str, dict[str, SessionTaken]] = {}  # by node: those it has not acknowledged yet
        self.deadlines = Expiry()
        self.kept = self.kept_bytes = 0  # of disconnected sessions, including expired ones not yet removed

    def gauges(self) -> dict[str, float]:
        kept = [record for record in self.records.values() if record.deadline is not None and record.deadline > self._clock()]
        return {"sessions_kept": len(kept), "sessions_kept_bytes": sum(len(record.snapshot) for record in kept)}

    def nodes(self) -> set[str]:
        return {node for node, sids in self.of_node.items() if sids}

    # --- received records ---------------------------------------------------------------------------------------------

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
            self._remove_order(applied.key)
            return
        taken = msgspec.msgpack.decode(applied.data, type=TakenOrder)
        self.orders.setdefault(taken.node, {})[applied.key] = taken.order
        if taken.node == self._node and applied.fresh:
            self._on_taken(taken.order)

    def _remove_order(self, key: str) -> None:
        for node, orders in list(self.orders.items()):
            if orders.pop(key, None) is not None and not orders:
                del self.orders[node]

    def forget_old(self) -> None:
        now = self._clock()
        self.gone = {sid: gone for sid, gone in self.gone.items() if gone.until > now}
        self.revoked = {ids: at for ids, at in self.revoked.items() if at[0].when + REMEMBERED_SECONDS > now}

    # --- queries ------------------------------------------------------------------------------------------------------

    def pending_orders(self, node: str) -> list[SessionTaken]:
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
        """The sessions of this identity that existed when it was revoked."""
        return [sid for sid in sorted(self.of_ids.get(ids, ())) if self.is_revoked(self.records[sid])]

    def is_revoked(self, record: SessionRecord) -> bool:
        """Whether its identity was revoked after the session began."""
        return self.revocation(record) is not None

    def revocation(self, record: SessionRecord) -> Revoked | None:
        revoked, sequence = self.revoked.get(record.ids, (None, 0))
        return revoked if self.origin(record) < sequence else None

    def find_revocation(self, ids: str, began: float) -> Revoked | None:
        """The revocation that covers a session begun at `began`."""
        revoked, _ = self.revoked.get(ids, (None, 0))
        return revoked if revoked is not None and began <= revoked.when else None

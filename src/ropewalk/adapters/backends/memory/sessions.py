"""Sessions in memory: those whose connection is gone, and of several nodes also those that live, by the node they live on.

Invariant: if several nodes take a session, one gets it. A session that was taken or has ended is remembered for a while, so
that a late write does not restore it. The number of kept sessions is bounded, and the oldest ends first.
"""

import itertools
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

import msgspec
from msgspec import Struct

from ropewalk.core.expiry import Expiry
from ropewalk.core.stats import Stats
from ropewalk.model.errors import LimitReached
from ropewalk.model.limits import StoreLimits
from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import SessionSnapshot, SessionTaken, SessionWrite
from ropewalk.model.shards import EndedSession, ExpiredSession, PendingNotice, Revocation, SessionContent, ShardItem
from ropewalk.ports import Clock

logger = logging.getLogger("ropewalk.session")

REMEMBERED = 60.0
"""Seconds for which ended sids and revoked identities are remembered: longer than a write may be repeated."""

OVERHEAD = 512
"""Bytes that a session takes besides its snapshot, roughly: keys, deadline, places in the maps."""

SWEPT_AT_ONCE = 250

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SessionSnapshot).decode


class NotifyNode(Protocol):
    """What brings an order to the node of a session."""

    def __call__(self, node: str, order: SessionTaken) -> None: ...


class _SessionRecord(Struct, gc=False):
    """A session. `deadline` is None while it lives on `node`. `formers`: earlier sids that are still valid for it, because no
    client may have heard of this one."""

    ids: str
    data: bytes
    node: str
    version: int
    ttl: float
    deadline: float | None = None
    formers: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return OVERHEAD + len(self.data)


class MemorySessions:
    """Sessions by sid.

    Args:
        notify: notifies the node of a session. None if there is one node: it writes no live sessions, so ended ones need not be
            remembered.
    """

    def __init__(self, clock: Clock, limits: StoreLimits, stats: Stats, notify: NotifyNode | None) -> None:
        self._stats = stats
        self._clock = clock
        self._notify_node = notify
        self._limits = limits
        self._records: dict[str, _SessionRecord] = {}
        self._of_ids: dict[str, set[str]] = {}
        self._of_node: dict[str, set[str]] = {}  # those that live there
        self._away: dict[str, None] = {}  # those without a connection, oldest first
        self._deadlines = Expiry()
        self._successors: dict[str, str] = {}  # former sid → sid
        self._gone = Expiry()
        self._gone_by: dict[str, SessionTaken] = {}  # by sid: the notice for its node
        self._revoked: dict[str, tuple[float, bool]] = {}  # ids → when, and whether its clients are to reconnect
        self._revocations = Expiry()
        self._over: deque[tuple[str, bytes]] = deque()
        self._over_bytes = 0
        self._untold: dict[str, dict[str, SessionTaken]] = {}  # node → sid → what it has not heard yet
        self.kept_bytes = 0

    def __len__(self) -> int:
        """Those whose connection is gone."""
        return len(self._away)

    def nodes(self) -> set[str]:
        return set(self._of_node)

    def live_on(self, node: str) -> list[str]:
        return sorted(self._of_node.get(node, ()))

    # --- of a node that lives -----------------------------------------------------------------------------------------

    def write(self, node: str, write: SessionWrite) -> SessionTaken | None:
        record = self._records.get(write.sid)
        if record is None:
            if (refusal := self._refusal(write)) is not None:
                return refusal
            formers: tuple[str, ...] = ()
        elif write.version <= record.version:
            return None  # a later one was faster
        else:
            formers = record.formers
            self._drop(write.sid, record)
        data, ttl = self._fitting(write)
        deadline = None if write.live else self._clock() + ttl
        record = _SessionRecord(write.snapshot.ids, data, node, write.version, ttl, deadline, formers)
        self._put(write.sid, record)
        if write.live:
            self._forget_formers(record)
        elif not ttl:
            self._end(write.sid)
        return None

    def _refusal(self, write: SessionWrite) -> SessionTaken | None:
        """Why a session that is not there cannot be written."""
        if write.sid in self._gone:
            return self._gone_by[write.sid]
        if write.began is None:
            return SessionTaken(write.sid, stored=False)
        revoked_at, reconnect = self._revoked.get(write.snapshot.ids, (0.0, True))
        return SessionTaken(write.sid, True, reconnect, stored=False) if write.began <= revoked_at else None

    def _fitting(self, write: SessionWrite) -> tuple[bytes, float]:
        data, ttl = _encode(write.snapshot), write.ttl
        if ttl and len(data) + OVERHEAD > self._limits.max_session_size:
            if not write.live:
                self._stats.refusals[Refusal.SESSION_SIZE] += 1
                logger.debug("a session is not kept: it is too large", extra={"bytes": len(data)})
            ttl = 0.0
        return data, ttl

    def untold(self, node: str, received: Collection[str]) -> tuple[SessionTaken, ...]:
        orders = self._untold.setdefault(node, {})
        for sid in received:
            orders.pop(sid, None)
        return tuple(orders.values())

    def node_died(self, node: str) -> None:
        self._untold.pop(node, None)
        now = self._clock()
        for sid in self.live_on(node):
            record = self._records[sid]
            self._drop(sid, record)
            record.deadline = now + record.ttl
            self._put(sid, record)

    # --- of a client that comes back ----------------------------------------------------------------------------------

    def save(self, sid: str, snapshot: SessionSnapshot, ttl: float) -> None:
        self.keep(sid, snapshot, self._clock() + ttl, ttl)

    def keep(self, sid: str, snapshot: SessionSnapshot, deadline: float, ttl: float | None = None) -> None:
        """Raises LimitReached."""
        data = _encode(snapshot)
        if len(data) + OVERHEAD > self._limits.max_session_size:
            raise LimitReached(f"a session of {len(data)} bytes is larger than may be kept")
        self._remove(sid)
        left = deadline - self._clock() if ttl is None else ttl
        self._put(sid, _SessionRecord(snapshot.ids, data, "", 0, left, deadline))

    def forget(self, sid: str) -> None:
        """It goes on in another store."""
        self._remove(sid)

    def current(self, sid: str) -> str:
        """The sid that a session has now."""
        return self._successors.get(sid, sid)

    def home(self, sid: str) -> str | None:
        """The sid that places a session in a ring: its first sid, until it is written under its latest. None if unknown."""
        record = self._records.get(sid)
        return None if record is None else record.formers[0] if record.formers else sid

    def end(self, sid: str, snapshot: SessionSnapshot) -> None:
        """The session cannot be resumed; return it as expired."""
        self._put_over(sid, _encode(snapshot))

    def peek(self, sid: str) -> SessionSnapshot | None:
        record = self._records.get(self._successors.get(sid, sid))
        return _decode(record.data) if record is not None and self._takeable(record) else None

    def take(self, node: str, sid: str, successor: str) -> SessionSnapshot | None:
        current = self._successors.get(sid, sid)
        record = self._records.get(current)
        if record is None or not self._takeable(record):
            return None
        if current == successor:  # the same call again
            return _decode(record.data)
        if successor in self._gone:  # the same call again, after another node took it
            return None
        formers = (*record.formers, current)
        self._remove(current, taken := SessionTaken(current))
        if record.deadline is None:
            self._notify(record.node, taken)
        if successor and self._notify_node is not None:
            deadline = self._clock() + record.ttl
            self._put(successor, _SessionRecord(record.ids, record.data, node, 0, record.ttl, deadline, formers))
            self._successors.update(dict.fromkeys(formers, successor))
        return _decode(record.data)

    def kept_for(self, sid: str) -> float | None:
        """Its TTL in seconds without a connection; None for an unknown session."""
        record = self._records.get(sid)
        return None if record is None else record.ttl

    def lives_on(self, sid: str) -> tuple[str, str]:
        """The node of a session, and the sid that it has there; both empty if it is on none."""
        current = self._successors.get(sid, sid)
        record = self._records.get(current)
        return (record.node, current) if record is not None and record.deadline is None else ("", "")

    def of_identity(self, ids: str) -> list[str]:
        return sorted(self._of_ids.get(ids, ()))

    def revoke(
        self, ids: str, reconnect: bool, at: float | None = None, without: Collection[str] = ()
    ) -> list[tuple[str, SessionSnapshot]]:
        """`at`: when that was ordered, if not now. `without`: nodes on which live ones are let be."""
        if self._notify_node is not None:
            at = self._clock() if at is None else at
            self._revoked[ids] = max((at, reconnect), self._revoked.get(ids, (0.0, True)))
            self._revocations.set(ids, self._clock() + REMEMBERED)
        return self.revoke_each((sid for sid in self.of_identity(ids) if not self._is_at(without, sid)), reconnect)

    def _is_at(self, nodes: Collection[str], sid: str) -> bool:
        """Whether the session lives on one of these nodes, or was taken by one of them."""
        record = self._records[sid]
        return record.node in nodes and (record.deadline is None or record.version == 0)

    def revoke_each(self, sids: Iterable[str], reconnect: bool) -> list[tuple[str, SessionSnapshot]]:
        """Those of them that are still there."""
        found = [(sid, record) for sid in sids if (record := self._records.get(sid)) is not None]
        for sid, record in found:
            self._remove(sid, taken := SessionTaken(sid, True, reconnect))
            if record.deadline is None:
                self._notify(record.node, taken)
        return [(sid, _decode(record.data)) for sid, record in found]

    def expired(self, limit: int) -> list[tuple[str, SessionSnapshot]]:
        given = [self._over.popleft() for _ in range(min(limit, len(self._over)))]
        self._over_bytes -= sum(len(data) for _, data in given)
        return [(sid, _decode(data)) for sid, data in given]

    def end_kept(self, limit: int) -> None:
        """So many of those whose connection is gone are over now."""
        for sid in list(itertools.islice(self._away, limit)):
            self._end(sid)

    def sweep(self, now: float) -> bool:
        """Remove a slice of the expired entries. Returns whether there are more."""
        for sid in self._deadlines.due(now, SWEPT_AT_ONCE):
            self._end(sid)
        for sid in self._gone.due(now, SWEPT_AT_ONCE):
            del self._gone_by[sid]
        for ids in self._revocations.due(now, SWEPT_AT_ONCE):
            del self._revoked[ids]
        return any(each.is_due(now) for each in (self._deadlines, self._gone, self._revocations))

    # --- of a store that takes its place -------------------------------------------------------------------------------

    def take_out(self, belongs: Callable[[str], bool]) -> list[ShardItem]:
        """The sessions whose first valid sid belongs to it, everything remembered about such sids, and a copy of the
        revocations."""
        homes = ((sid, record) for sid, record in self._records.items() if belongs((*record.formers, sid)[0]))
        taken = [SessionContent(sid, *msgspec.structs.astuple(record)) for sid, record in homes]
        for session in taken:
            self._drop(session.sid, self._records[session.sid])
            for former in session.formers:
                del self._successors[former]
        gone = [EndedSession(until, self._gone_by[sid]) for sid, until in self._gone.items() if belongs(sid)]
        for each in gone:
            self._gone.discard(each.notice.sid)
            del self._gone_by[each.notice.sid]
        over = [ExpiredSession(sid, data) for sid, data in self._over if belongs(sid)]
        self._over = deque((sid, data) for sid, data in self._over if not belongs(sid))
        self._over_bytes -= sum(len(each.data) for each in over)
        untold = ((node, order) for node, orders in self._untold.items() for order in orders.values())
        orders = [PendingNotice(node, order) for node, order in untold if belongs(order.sid)]
        for content in orders:
            del self._untold[content.node][content.notice.sid]
        revoked = [
            Revocation(ids, at, self._revocations.deadline(ids) or 0.0, reconnect)
            for ids, (at, reconnect) in self._revoked.items()
        ]
        return [*revoked, *taken, *gone, *over, *orders]

    def put_in(self, item: ShardItem) -> None:
        """One that `take_out` gave; others are left alone."""
        match item:
            case SessionContent(sid, ids, data, node, version, ttl, deadline, formers):
                self._put(sid, _SessionRecord(ids, data, node, version, ttl, deadline, formers))
                self._successors.update(dict.fromkeys(formers, sid))
            case EndedSession(until, order):
                self._forget_later(order, until)
            case ExpiredSession(sid, data):
                self._put_over(sid, data)
            case PendingNotice(node, order):
                self._untold.setdefault(node, {})[order.sid] = order
            case Revocation(ids, at, until, reconnect):
                self._revoked[ids] = max((at, reconnect), self._revoked.get(ids, (0.0, True)))
                self._revocations.set(ids, max(until, self._revocations.deadline(ids) or 0.0))

    # --- the maps -----------------------------------------------------------------------------------------------------

    def _takeable(self, record: _SessionRecord) -> bool:
        return self._clock() < record.deadline if record.deadline is not None else record.ttl > 0

    def _put(self, sid: str, record: _SessionRecord) -> None:
        self._records[sid] = record
        self._of_ids.setdefault(record.ids, set()).add(sid)
        if record.deadline is None:
            self._of_node.setdefault(record.node, set()).add(sid)
            return
        self._away[sid] = None
        self._deadlines.set(sid, record.deadline)
        self.kept_bytes += record.size
        while len(self._away) > self._limits.sessions_limit or self.kept_bytes > self._limits.max_sessions_size:
            self._stats.refusals[Refusal.SESSIONS_FULL] += 1
            self._end(next(iter(self._away)))

    def _drop(self, sid: str, record: _SessionRecord) -> None:
        """The opposite of `_put`."""
        del self._records[sid]
        _discard(self._of_ids, record.ids, sid)
        if record.deadline is None:
            _discard(self._of_node, record.node, sid)
            return
        del self._away[sid]
        self._deadlines.discard(sid)
        self.kept_bytes -= record.size

    def _end(self, sid: str) -> None:
        self._put_over(sid, self._records[sid].data)
        self._remove(sid)

    def _remove(self, sid: str, order: SessionTaken | None = None) -> None:
        """`order`: the notice for its node, unless the session was taken or has ended."""
        record = self._records.get(sid)
        if record is not None:
            self._drop(sid, record)
            self._forget_formers(record)
            self._forget_later(order or SessionTaken(sid), self._clock() + REMEMBERED)

    def _forget_later(self, order: SessionTaken, until: float) -> None:
        if self._notify_node is not None:
            self._gone.set(order.sid, until)
            self._gone_by[order.sid] = order

    def _forget_formers(self, record: _SessionRecord) -> None:
        for former in record.formers:
            del self._successors[former]
        record.formers = ()

    def _put_over(self, sid: str, data: bytes) -> None:
        limits = self._limits
        if len(self._over) >= limits.sessions_limit or self._over_bytes + len(data) > limits.max_sessions_size:
            if not self._stats.app_disconnects_dropped:
                logger.error("sessions that ended are forgotten before anybody heard of them: too many wait")
            self._stats.app_disconnects_dropped += 1
            return
        self._over.append((sid, data))
        self._over_bytes += len(data)

    def _notify(self, node: str, order: SessionTaken) -> None:
        self._untold.setdefault(node, {})[order.sid] = order
        if self._notify_node is not None:
            self._notify_node(node, order)


def _discard(index: dict[str, set[str]], key: str, sid: str) -> None:
    index[key].discard(sid)
    if not index[key]:
        del index[key]

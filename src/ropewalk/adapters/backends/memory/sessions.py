"""Sessions in memory whose connection is gone.

Invariant: a sid is given out once and never after its TTL. The oldest session is dropped when there are too many or when
they hold too many bytes. An expired session is given out once more, so that the application can be told.
"""

import logging
from collections import OrderedDict, deque

import msgspec

from ropewalk.core.expiry import Expiry
from ropewalk.core.stats import Stats
from ropewalk.model.errors import LimitReached
from ropewalk.model.limits import StoreLimits
from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import SessionSnapshot
from ropewalk.ports import Clock

logger = logging.getLogger("ropewalk.session")

OVERHEAD = 512
"""Bytes that a kept session takes besides its snapshot, roughly: keys, deadline, places in the maps."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SessionSnapshot).decode


class _Kept(msgspec.Struct, frozen=True, gc=False):
    """The snapshot as bytes: that is smaller than the objects, and it is what the limits count."""

    ids: str
    data: bytes
    deadline: float

    @property
    def size(self) -> int:
        return OVERHEAD + len(self.data)


class MemorySessions:
    """Implements `ports.SessionStore`."""

    def __init__(self, clock: Clock, limits: StoreLimits, stats: Stats, lasting: bool = False) -> None:
        self._clock = clock
        self._limits = limits
        self._stats = stats
        self._lasting = lasting
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._sids: dict[str, set[str]] = {}  # by ids
        self._deadlines = Expiry()
        self._over: deque[tuple[str, bytes]] = deque()
        self._over_size = 0
        self.size = 0

    def __len__(self) -> int:
        return len(self._kept)

    async def save(self, sid: str, snapshot: SessionSnapshot, ttl: float) -> None:
        self.keep(sid, snapshot, self._clock() + ttl)

    def keep(self, sid: str, snapshot: SessionSnapshot, deadline: float) -> None:
        """Raises LimitReached."""
        kept = _Kept(snapshot.ids, _encode(snapshot), deadline)
        if kept.size > self._limits.max_session_size:
            raise LimitReached(f"a session of {kept.size} bytes is larger than may be kept")
        self._remove(sid)
        self._kept[sid] = kept
        self._sids.setdefault(kept.ids, set()).add(sid)
        self._deadlines.set(sid, deadline)
        self.size += kept.size
        while len(self._kept) > self._limits.sessions_limit or self.size > self._limits.max_sessions_size:
            self._stats.refusals[Refusal.SESSIONS_FULL] += 1
            self._give_up(next(iter(self._kept)))

    async def peek(self, sid: str) -> SessionSnapshot | None:
        kept = self._kept.get(sid)
        return _decode(kept.data) if kept is not None and self._clock() < kept.deadline else None

    async def take(self, sid: str, successor: str = "") -> SessionSnapshot | None:
        kept = self._remove(sid)
        if kept is None:
            return None
        if self._clock() < kept.deadline:
            return _decode(kept.data)
        self._put_over(sid, kept.data)
        return None

    async def revoke(self, ids: str, reconnect: bool) -> list[tuple[str, SessionSnapshot]]:
        return [(sid, _decode(kept.data)) for sid in sorted(self._sids.get(ids, ())) if (kept := self._remove(sid))]

    async def take_expired(self, limit: int) -> list[tuple[str, SessionSnapshot]]:
        return [self._take_over() for _ in range(min(limit, len(self._over)))]

    async def take_abandoned(self) -> list[tuple[str, SessionSnapshot]]:
        ended = [] if self._lasting else [(sid, _decode(kept.data)) for sid in list(self._kept) if (kept := self._remove(sid))]
        return [*await self.take_expired(len(self._over)), *ended]

    def end(self, sid: str, snapshot: SessionSnapshot) -> None:
        """One that nobody can resume, to be given out as expired."""
        self._put_over(sid, _encode(snapshot))

    def sweep(self, now: float, most: int) -> bool:
        """At most `most` of those that have expired. Returns whether there are more."""
        for sid in self._deadlines.due(now, most):
            self._give_up(sid)
        return self._deadlines.is_due(now)

    def _give_up(self, sid: str) -> None:
        kept = self._remove(sid)
        if kept is not None:
            self._put_over(sid, kept.data)

    def _remove(self, sid: str) -> _Kept | None:
        kept = self._kept.pop(sid, None)
        if kept is None:
            return None
        self._deadlines.discard(sid)
        self.size -= kept.size
        of_same = self._sids[kept.ids]
        of_same.discard(sid)
        if not of_same:
            del self._sids[kept.ids]
        return kept

    def _put_over(self, sid: str, data: bytes) -> None:
        if len(self._over) >= self._limits.sessions_limit or self._over_size + len(data) > self._limits.max_sessions_size:
            if not self._stats.app_disconnects_dropped:
                logger.error("sessions that ended are forgotten before anybody heard of them: too many wait")
            self._stats.app_disconnects_dropped += 1
            return
        self._over.append((sid, data))
        self._over_size += len(data)

    def _take_over(self) -> tuple[str, SessionSnapshot]:
        sid, data = self._over.popleft()
        self._over_size -= len(data)
        return sid, _decode(data)

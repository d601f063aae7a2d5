"""Sessions in memory, while their connection is gone.

The rule it keeps: a sid is given out once, never after its time, and the oldest is forgotten when there are too many. One that
an application knows of is not simply forgotten: it is given out once more, as one whose time is over.
"""

from collections import OrderedDict, deque

from ropewalk.core.expiry import Expiry
from ropewalk.model.sessions import SessionSnapshot
from ropewalk.ports import Clock

SWEPT_AT_ONCE = 2000
"""Sessions that one sweep may look at."""


class MemorySessions:
    """Fills `ports.SessionStore`."""

    def __init__(self, clock: Clock, limit: int, lasting: bool = False) -> None:
        self._clock = clock
        self._limit = limit
        self._lasting = lasting
        self._kept: OrderedDict[str, tuple[SessionSnapshot, float]] = OrderedDict()
        self._deadlines = Expiry()
        self._over: deque[tuple[str, SessionSnapshot]] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    async def save(self, sid: str, snapshot: SessionSnapshot, ttl: float) -> None:
        self.keep(sid, snapshot, self._clock() + ttl)

    def keep(self, sid: str, snapshot: SessionSnapshot, deadline: float) -> None:
        self._kept[sid] = (snapshot, deadline)
        self._kept.move_to_end(sid)
        self._deadlines.set(sid, deadline)
        if len(self._kept) > self._limit:
            oldest, (forgotten, _) = self._kept.popitem(last=False)
            self._deadlines.discard(oldest)
            self.forget(oldest, forgotten)

    def forget(self, sid: str, snapshot: SessionSnapshot) -> None:
        """Nobody can resume it (any more)."""
        if snapshot.app is not None and snapshot.app.known and len(self._over) < self._limit:
            self._over.append((sid, snapshot))

    async def take(self, sid: str) -> SessionSnapshot | None:
        kept = self._kept.pop(sid, None)
        if kept is None:
            return None
        self._deadlines.discard(sid)
        snapshot, deadline = kept
        if self._clock() < deadline:
            return snapshot
        self.forget(sid, snapshot)
        return None

    async def expired(self, limit: int) -> list[tuple[str, SessionSnapshot]]:
        return [self._over.popleft() for _ in range(min(limit, len(self._over)))]

    async def abandoned(self) -> list[tuple[str, SessionSnapshot]]:
        if not self._lasting:
            for sid, (snapshot, _) in self._kept.items():
                self.forget(sid, snapshot)
            self._kept.clear()
        return await self.expired(len(self._over))

    def sweep(self) -> None:
        for sid in self._deadlines.due(self._clock(), SWEPT_AT_ONCE):
            self.forget(sid, self._kept.pop(sid)[0])

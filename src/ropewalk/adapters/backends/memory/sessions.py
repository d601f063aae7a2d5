"""Sessions in memory, while their connection is gone.

The rule it keeps: a sid is given out once, never after its time, and the oldest is forgotten when there are too many.
"""

from collections import OrderedDict

from ropewalk.core.expiry import Expiry
from ropewalk.model.sessions import SessionSnapshot
from ropewalk.ports import Clock

SWEPT_AT_ONCE = 2000
"""Sessions that one sweep may look at."""


class MemorySessions:
    """Fills `ports.SessionStore`."""

    def __init__(self, clock: Clock, limit: int) -> None:
        self._clock = clock
        self._limit = limit
        self._kept: OrderedDict[str, tuple[SessionSnapshot, float]] = OrderedDict()
        self._deadlines = Expiry()

    def __len__(self) -> int:
        return len(self._kept)

    async def save(self, sid: str, snapshot: SessionSnapshot, ttl: float) -> None:
        self.keep(sid, snapshot, self._clock() + ttl)

    def keep(self, sid: str, snapshot: SessionSnapshot, deadline: float) -> None:
        self._kept[sid] = (snapshot, deadline)
        self._kept.move_to_end(sid)
        self._deadlines.set(sid, deadline)
        if len(self._kept) > self._limit:
            self._deadlines.discard(self._kept.popitem(last=False)[0])

    async def take(self, sid: str) -> SessionSnapshot | None:
        kept = self._kept.pop(sid, None)
        if kept is None:
            return None
        self._deadlines.discard(sid)
        snapshot, deadline = kept
        return snapshot if self._clock() < deadline else None

    def sweep(self) -> None:
        for sid in self._deadlines.due(self._clock(), SWEPT_AT_ONCE):
            del self._kept[sid]

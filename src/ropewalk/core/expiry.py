"""Deadlines by key, in a heap that is updated lazily.

Invariant: moving a deadline later costs one dict write, and no call checks more entries than its limit.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

MAX_STALE_ENTRIES = 64
"""Stale heap entries beyond one per key at which the heap is rebuilt."""


class Expiry:
    """Deadlines by key. The heap may hold an earlier time than a key's deadline, and is corrected when that time comes."""

    __slots__ = ("_due", "_heap", "_queued")

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._queued: dict[str, float] = {}  # the time of the key's one heap entry that counts
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: str) -> bool:
        return key in self._due

    def deadline(self, key: str) -> float | None:
        return self._due.get(key)

    def items(self) -> Iterable[tuple[str, float]]:
        return self._due.items()

    def set(self, key: str, deadline: float) -> None:
        """Set the key's deadline, replacing any former one."""
        self._due[key] = deadline
        queued = self._queued.get(key)
        if queued is None or deadline < queued:
            self._queue(key, deadline)

    def discard(self, key: str) -> None:
        """Remove the key, if it is there."""
        if self._due.pop(key, None) is not None:
            del self._queued[key]
            self._compact()

    def due(self, now: float, limit: int) -> list[str]:
        """Remove and return the keys whose deadline has come, earliest first, checking at most `limit` heap entries."""
        answer: list[str] = []
        while limit > 0 and self._heap and self._heap[0][0] <= now:
            limit -= 1
            time, key = heappop(self._heap)
            if self._queued.get(key) != time:
                continue
            if self._due[key] > time:
                self._queue(key, self._due[key])
            else:
                del self._due[key], self._queued[key]
                answer.append(key)
        return answer

    def is_due(self, now: float) -> bool:
        """Whether `due` has something to look at."""
        return bool(self._heap) and self._heap[0][0] <= now

    def _queue(self, key: str, deadline: float) -> None:
        self._queued[key] = deadline
        heappush(self._heap, (deadline, key))
        self._compact()

    def _compact(self) -> None:
        # Amortised by the removed stale entries: at least as many as there are keys.
        if len(self._heap) > 2 * len(self._due) + MAX_STALE_ENTRIES:
            self._queued = dict(self._due)
            self._heap = [(deadline, key) for key, deadline in self._due.items()]
            heapify(self._heap)

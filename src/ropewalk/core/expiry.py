"""Deadlines by key, in a heap that is updated lazily.

Invariant: moving a deadline later costs one dict write, and no call looks at more entries than it was allowed to.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

SLACK = 64
"""Stale heap entries that are tolerated beyond one a key, before the heap is built anew."""


class Expiry:
    """What is due when. The heap may hold an earlier time than a key's deadline, and learns of the later when it comes up."""

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
        """Give the key this deadline, in place of any it had."""
        self._due[key] = deadline
        queued = self._queued.get(key)
        if queued is None or deadline < queued:
            self._queue(key, deadline)

    def discard(self, key: str) -> None:
        """Forget the key. Harmless when it is unknown."""
        if self._due.pop(key, None) is not None:
            del self._queued[key]
            self._compact()

    def due(self, now: float, most: int) -> list[str]:
        """Take out the keys whose deadline has come, earliest first, looking at `most` heap entries at the most."""
        answer: list[str] = []
        while most > 0 and self._heap and self._heap[0][0] <= now:
            most -= 1
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
        # Paid for by the stale entries it removes: at least as many as there are keys.
        if len(self._heap) > 2 * len(self._due) + SLACK:
            self._queued = dict(self._due)
            self._heap = [(deadline, key) for key, deadline in self._due.items()]
            heapify(self._heap)

"""Which orders to end sessions a process of a ring is just carrying out."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class OrdersUnderWay:
    """Identities whose sessions every process of the ring is told to end, each its own."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def __contains__(self, ids: object) -> bool:
        return ids in self._counts

    @contextmanager
    def carrying_out(self, ids: str) -> Iterator[None]:
        self._counts[ids] += 1
        try:
            yield
        finally:
            self._counts[ids] -= 1
            if not self._counts[ids]:
                del self._counts[ids]

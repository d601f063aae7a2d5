"""The store of the simulation and of tests: the workers' shared store, with a record queue, that can lose its data.

It is the reference for any store that several nodes share. Every call is atomic.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

from ropewalk.adapters.backends.memory.store import StoreOptions
from ropewalk.adapters.backends.workers.store import Carrier, SharedStore
from ropewalk.core.rules import Rulebook
from ropewalk.model.journal import QueuedRows, Row
from ropewalk.model.limits import STORE_LIMITS, StoreLimits
from ropewalk.ports import Clock


class SharedQueue:
    """Rows to be recorded. Implements `ports.Journal`: streams write their registered messages to it."""

    instant = True

    def __init__(self, clock: Clock, limit: int) -> None:
        self._clock = clock
        self._limit = limit
        self._rows: deque[Row] = deque()
        self._removed = 0
        self._claim: tuple[str, float] | None = None  # the latest: node and expiry time
        self.dropped = 0

    async def write(self, rows: Sequence[Row]) -> None:
        self.write_nowait(rows)

    def write_nowait(self, rows: Sequence[Row]) -> None:
        if self._claim is None:
            return
        self._rows += rows
        while len(self._rows) > self._limit:
            self._rows.popleft()
            self._removed += 1
            self.dropped += 1

    def health(self) -> str:
        return ""

    def gauges(self) -> dict[str, float]:
        return {"record_queue_rows": len(self._rows), "record_queue_dropped_rows": self.dropped}

    def claim(self, node: str, ttl: float) -> bool:
        if self._claim is not None and self._claim[0] != node and self._holds(self._claim[0]):
            return False
        self._claim = node, self._clock() + ttl
        return True

    def read(self, limit: int) -> QueuedRows:
        rows = tuple(islice(self._rows, limit))
        return QueuedRows(rows, str(self._removed + len(rows)))

    def remove(self, node: str, piece: QueuedRows) -> bool:
        if not self._holds(node):
            return False
        while self._rows and self._removed < int(piece.mark):
            self._rows.popleft()
            self._removed += 1
        return True

    def add(self, rows: Sequence[Row]) -> bool:
        self.write_nowait(rows)
        return self._claim is not None

    def _holds(self, node: str) -> bool:
        return self._claim is not None and self._claim[0] == node and self._clock() < self._claim[1]


class LosableStore(SharedStore):
    """A shared store that can lose its data.

    Args:
        rulebook: the rules of streams.
        clock: UNIX seconds.
        carrier: receives registered messages and disconnect requests.
        limits: of the store.
        queue_limit: maximum number of rows in the record queue.
    """

    def __init__(
        self,
        rulebook: Rulebook,
        clock: Clock,
        carrier: Carrier,
        limits: StoreLimits = STORE_LIMITS,
        queue_limit: int = 100_000,
    ) -> None:
        self._begin: Callable[[], None] = partial(self._start_empty, rulebook, clock, carrier, limits, queue_limit)
        self._next_lease = 1
        self._begin()

    def _start_empty(self, rulebook: Rulebook, clock: Clock, carrier: Carrier, limits: StoreLimits, queue_limit: int) -> None:
        self.queue = SharedQueue(clock, queue_limit)
        super().__init__(rulebook, clock, carrier, StoreOptions(limits, self.queue), self._next_lease)

    async def lose(self) -> None:
        """Restart without any data."""
        self._begin()


class NodeQueue:
    """Implements `ports.RecordQueue` for one node."""

    def __init__(self, store: LosableStore, node: str) -> None:
        self._store = store
        self._node = node

    @property
    def _queue(self) -> SharedQueue:
        return self._store.queue

    async def claim(self, ttl: float) -> bool:
        return self._queue.claim(self._node, ttl)

    async def read(self, limit: int) -> QueuedRows:
        return self._queue.read(limit)

    async def remove(self, piece: QueuedRows) -> bool:
        return self._queue.remove(self._node, piece)

    async def add(self, rows: Sequence[Row]) -> bool:
        return self._queue.add(rows)

    def gauges(self) -> dict[str, float]:
        return self._queue.gauges()

"""Reads of history on one connection of the bus: each is carried out when the other side has read the answers before it.

Invariant: while the other side is behind no answer with history is made, so that it need not be kept here. Calls of other kinds
do not wait.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from ropewalk.adapters.backends.workers import wire
from ropewalk.adapters.backends.workers.wire import BusConnection

MAX_UNDER_WAY = 64
"""Reads that wait for an archive at the same time. Their answers together fit into what may be buffered."""

HistoryRead = Callable[[], asyncio.Task[object] | None]
"""Returns None if it was carried out at once."""


class PendingReads:
    """Call `go_on` when the connection has caught up, and `stop` when it has ended."""

    def __init__(self, connection: BusConnection) -> None:
        self._connection = connection
        self._reads: deque[HistoryRead] = deque()
        self._under_way = 0

    def add(self, read: HistoryRead) -> None:
        """Carry it out now, or when its turn comes."""
        self._reads.append(read)
        if len(self._reads) == 1:
            self.go_on()

    def go_on(self) -> None:
        connection = self._connection
        while self._reads and not connection.behind and self._under_way < MAX_UNDER_WAY:
            if connection.buffered > wire.MUCH_BUFFERED:  # a transport that writes once a tick: then it is known who is behind
                asyncio.get_running_loop().call_soon(self.go_on)
                return
            task = self._reads.popleft()()
            if task is not None:
                self._under_way += 1
                task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[object]) -> None:
        self._under_way -= 1
        self.go_on()

    def stop(self) -> None:
        self._reads.clear()

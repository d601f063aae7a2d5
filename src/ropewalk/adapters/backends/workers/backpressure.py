"""Bounds what the store process buffers for a process that reads slowly: its reads of history wait, and so do answers to
publishers while a worker is behind."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from ropewalk.adapters.backends.workers import wire
from ropewalk.adapters.backends.workers.wire import BusConnection

HOLD_SECONDS = 1.0
"""For how long answers wait at the most."""


class HeldAnswers:
    """Answers to publishers, held while a worker is slow to read registered messages: a publisher that waits for its answers
    does not outrun the workers that deliver.

    Invariant: a worker that is behind for `HOLD_SECONDS` is not waited for again until it has caught up.

    Args:
        connections: of all workers.
    """

    def __init__(self, connections: Callable[[], Iterable[BusConnection]]) -> None:
        self._connections = connections
        self._standing: set[BusConnection] = set()
        self._held: list[tuple[BusConnection, bytes]] = []

    def send(self, connection: BusConnection, answer: bytes) -> None:
        """Send it now, or when all workers have caught up."""
        if self._held or self._is_anyone_behind():
            self._hold(connection, answer)
        else:
            connection.send(answer)

    def caught_up(self) -> None:
        """One of them has, or is gone."""
        self._standing = {each for each in self._standing if each.behind}
        if self._held and not self._is_anyone_behind():
            self._answer()

    def _is_anyone_behind(self) -> bool:
        return any(each.behind and each not in self._standing for each in self._connections())

    def _hold(self, connection: BusConnection, answer: bytes) -> None:
        if not self._held:
            self._hold_ends = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._wait_no_longer)
        self._held.append((connection, answer))

    def _wait_no_longer(self) -> None:
        self._standing = {each for each in self._connections() if each.behind}
        self._answer()

    def _answer(self) -> None:
        self._hold_ends.cancel()
        held, self._held = self._held, []
        for connection, answer in held:
            connection.send(answer)


MAX_UNDER_WAY = 64
"""Reads that wait for an archive at the same time. Their answers together fit into what may be buffered."""

HistoryRead = Callable[[], asyncio.Task[object] | None]
"""Returns None if it was carried out at once."""


class PendingReads:
    """Reads of history on one connection. Each is carried out when the other side has read the answers before it, so that no
    answer with history waits here. Calls of other kinds do not wait.

    Call `go_on` when the connection has caught up, and `stop` when it has ended.
    """

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
            if connection.buffered > wire.HIGH_WATER_BYTES:  # a transport that writes once per tick: check again after that
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

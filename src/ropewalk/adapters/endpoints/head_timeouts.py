"""Timeouts for request heads: for the first one of a connection, and for every further one that has begun.

All may take equally long, so that one timer, set for the first of them, does for all.
"""

import asyncio
from typing import Protocol

MESSAGE_SECONDS = 30.0
"""Seconds from the first to the last byte of a client's message. The received part is kept in memory meanwhile."""


class AwaitedHead(Protocol):
    def time_out(self) -> None: ...


class HeadTimeouts:
    """`begin`, and `end` before `seconds` are over, or `time_out` is called."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[AwaitedHead, float] = {}  # in the order of these times
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # once known, not asked for with every connection

    def begin(self, waiting: AwaitedHead) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._until[waiting] = until = self._loop.time() + self._seconds
        if self._timer is None:
            self._timer = self._loop.call_at(until, self._look)

    def end(self, waiting: AwaitedHead) -> None:
        """Harmless for one that never began."""
        self._until.pop(waiting, None)

    def _look(self) -> None:
        """The timer may belong to an entry that has ended since. Set the next one for the current first entry."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        late = [waiting for waiting, until in self._until.items() if until <= now]
        for waiting in late:
            self.end(waiting)
            waiting.time_out()
        first = next(iter(self._until.values()), None)
        self._timer = None if first is None else loop.call_at(first, self._look)

"""How long a connection may take to say what it wants: first of all, and with every further request once that has begun.

All may take equally long, so that one timer, set for the first of them, does for all.
"""

import asyncio
from typing import Protocol

MESSAGE_SECONDS = 30.0
"""How long a message of a client may take from its first byte to its last. What has come of it is kept meanwhile."""


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
        """The timer was set for one that may have ended since; the next is set for whoever is the first now."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        late = [waiting for waiting, until in self._until.items() if until <= now]
        for waiting in late:
            self.end(waiting)
            waiting.time_out()
        first = next(iter(self._until.values()), None)
        self._timer = None if first is None else loop.call_at(first, self._look)

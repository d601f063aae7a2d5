"""What waits for the program that reads one stream. Bounded: while it is full the client stops reading its socket.

Nothing is ever dropped here; the server notices the full socket and acts by its own rule for slow connections.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from ropewalk.client.events import Event


class EventInbox:
    """`relieved` is called when it was full and no longer is."""

    def __init__(self, size: int, relieved: Callable[[], None]) -> None:
        self._size = size
        self._relieved = relieved
        self._events: deque[Event] = deque()
        self._stirred = asyncio.Event()
        self._end: Exception | None = None

    @property
    def full(self) -> bool:
        return self._end is None and len(self._events) >= self._size

    def put(self, event: Event) -> None:
        """Never refuses: who puts looks at `full` before reading on."""
        self._events.append(event)
        self._stirred.set()

    def finish(self, end: Exception) -> None:
        """`end` is raised to the reader once everything is read. The first one counts."""
        self._end = self._end or end
        self._stirred.set()
        self._relieved()

    async def take(self) -> Event:
        while not self._events:
            if self._end is not None:
                raise self._end
            self._stirred.clear()
            await self._stirred.wait()
        was_full = self.full
        event = self._events.popleft()
        if was_full:
            self._relieved()
        return event

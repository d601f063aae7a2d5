"""What waits for the program that reads one stream. Bounded: while it is full the client stops reading its socket.

Nothing is ever dropped here; the server notices the full socket and acts by its own rule for slow connections.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

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

    def put_all(self, events: Sequence[Event]) -> None:
        """Several at once; the reader wakes up once."""
        self._events.extend(events)
        self._stirred.set()

    def finish(self, end: Exception) -> None:
        """`end` is raised to the reader once everything is read. The first one counts."""
        self._end = self._end or end
        self._stirred.set()
        self._relieved()

    async def take(self) -> Event:
        events = self._events
        while not events:
            await self._something()
        event = events.popleft()
        if len(events) == self._size - 1:  # it was full, and no longer is
            self._relieved()
        return event

    async def take_all(self) -> list[Event]:
        """Everything that waits: at least one event."""
        while not self._events:
            await self._something()
        events = list(self._events)
        self._events.clear()
        if len(events) >= self._size:
            self._relieved()
        return events

    async def _something(self) -> None:
        if self._end is not None:
            raise self._end
        self._stirred.clear()
        await self._stirred.wait()

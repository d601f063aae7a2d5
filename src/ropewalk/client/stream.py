"""A stream as the program uses it: an endless `async for`, and the requests about it.

Iteration continues over reconnects. It ends with `unsubscribe` or with the client, and raises if the server ended it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol, Self

import msgspec

from ropewalk.client.errors import Ended, PresenceUnavailable
from ropewalk.client.events import Event, PresenceChange, PresenceState
from ropewalk.model.commands import Perform, Whisper
from ropewalk.model.nesting import TOO_DEEP, is_too_deep
from ropewalk.model.presence import Member


class EventInbox:
    """Events that wait for the reader of one stream. While it is full the client stops reading its socket: nothing is dropped
    here, and the server applies its rule for slow connections.

    Args:
        size: The number of events from which it is full.
        relieved: Called when it is no longer full.
    """

    def __init__(self, size: int, relieved: Callable[[], None]) -> None:
        self._size = size
        self._relieved = relieved
        self._events: deque[Event] = deque()
        self._changed = asyncio.Event()
        self._end: Exception | None = None

    @property
    def full(self) -> bool:
        return self._end is None and len(self._events) >= self._size

    def put(self, events: Sequence[Event]) -> None:
        """Always succeeds, and wakes the reader once. Check `full` before reading on."""
        self._events.extend(events)
        self._changed.set()

    def finish(self, end: Exception) -> None:
        """The reader gets `end` after all events. Only the first call counts."""
        self._end = self._end or end
        self._changed.set()
        self._relieved()

    async def take(self) -> Event:
        events = self._events
        while not events:
            await self._wait()
        event = events.popleft()
        if len(events) == self._size - 1:  # it was full, and no longer is
            self._relieved()
        return event

    async def take_all(self) -> list[Event]:
        """All events that wait, at least one."""
        while not self._events:
            await self._wait()
        events = list(self._events)
        self._events.clear()
        if len(events) >= self._size:
            self._relieved()
        return events

    async def _wait(self) -> None:
        if self._end is not None:
            raise self._end
        self._changed.clear()
        await self._changed.wait()


class StreamOwner(Protocol):
    """The session of a stream."""

    async def join(self, identifier: str, member: Member) -> None: ...
    async def leave(self, identifier: str) -> None: ...
    async def presence(self, identifier: str) -> PresenceState: ...
    async def send_command(self, command: Whisper | Perform) -> None: ...
    async def unsubscribe(self, identifier: str) -> None: ...


class Stream:
    """One subscription. Iterate it in one task; all other methods may be called from any task of the loop."""

    def __init__(self, owner: StreamOwner, identifier: str, inbox: EventInbox, presence_events: bool) -> None:
        self.identifier = identifier
        self.inbox = inbox
        self.live = asyncio.Event()
        self.confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.queries: deque[asyncio.Future[PresenceState]] = deque()
        self._owner = owner
        self._presence_events = presence_events
        self._end: Exception | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        try:
            return await self.inbox.take()
        except Ended:
            raise StopAsyncIteration from None

    async def batches(self) -> AsyncIterator[list[Event]]:
        """The same events in lists of all that have arrived: for programs that handle many at once."""
        while True:
            try:
                events = await self.inbox.take_all()
            except Ended:
                return
            yield events

    async def join(self, id: str, info: Any = None) -> None:
        """Become a member of the presence set, also after reconnects, until `leave`."""
        await self._owner.join(self.identifier, Member(id, b"" if info is None else _json(info, "the info of a member")))

    async def leave(self) -> None:
        await self._owner.leave(self.identifier)

    async def presence(self) -> PresenceState:
        """The present members. Raises PresenceUnavailable or NoAnswer."""
        return await self._owner.presence(self.identifier)

    async def whisper(self, data: Any) -> None:
        """Send a message to the other clients of this stream, which is not stored. Waits for the connection; no receipt."""
        await self._owner.send_command(Whisper(self.identifier, _json(data, "a whisper")))

    async def perform(self, action: str, **data: Any) -> None:
        """Call an action of the channel. Waits for the connection; no receipt."""
        text = _json({**data, "action": action}, "the data of an action").decode()
        await self._owner.send_command(Perform(self.identifier, text))

    async def unsubscribe(self) -> None:
        """Iteration ends after the events that have arrived."""
        await self._owner.unsubscribe(self.identifier)

    # --- for the session ---

    def offer(self, events: Sequence[Event]) -> None:
        """A presence change is always alone."""
        if self._presence_events or not isinstance(events[0], PresenceChange):
            self.inbox.put(events)

    def confirm(self) -> None:
        self.live.set()
        if not self.confirmed.done():
            self.confirmed.set_result(None)

    def answer(self, presence: PresenceState | None) -> None:
        """Answers the oldest query, whose caller may have given up."""
        query = self.queries.popleft() if self.queries else None
        if query is None or query.done():
            return
        if presence is None:
            query.set_exception(PresenceUnavailable("the server has no presence for this stream"))
        else:
            query.set_result(presence)

    def finish(self, end: Exception) -> None:
        """There are no more events, and callers that wait get `end`."""
        self._end = self._end or end
        waiting: list[asyncio.Future[Any]] = [self.confirmed, *self.queries]
        for answer in waiting:
            if not answer.done():
                answer.set_exception(end)
        self.inbox.finish(end)
        self.live.set()

    async def until_live(self) -> None:
        """Raises if the stream has ended."""
        await self.live.wait()
        if self._end is not None:
            raise self._end


def _json(value: object, what: str) -> bytes:
    """Raises ValueError for data that servers reject by closing the connection."""
    try:
        text = msgspec.json.encode(value)
    except RecursionError:
        raise ValueError(f"{what} is {TOO_DEEP}") from None
    if is_too_deep(text):
        raise ValueError(f"{what} is {TOO_DEEP}")
    return text

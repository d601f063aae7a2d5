"""A stream as the program holds it: an endless `async for`, and what can be said back to the server.

Reading goes on over lost connections. It ends by `unsubscribe` or with the client, and raises when the server said no.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol, Self

import msgspec

from ropewalk.client.errors import Ended, PresenceUnavailable
from ropewalk.client.events import Event, PresenceChange, PresenceState
from ropewalk.client.inbox import EventInbox
from ropewalk.model.commands import Perform, Whisper
from ropewalk.model.nesting import TOO_DEEP, too_deep
from ropewalk.model.presence import Member


class StreamOwner(Protocol):
    """What a stream asks of the session it belongs to."""

    async def join(self, identifier: str, member: Member) -> None: ...
    async def leave(self, identifier: str) -> None: ...
    async def presence(self, identifier: str) -> PresenceState: ...
    async def say(self, command: Whisper | Perform) -> None: ...
    async def unsubscribe(self, identifier: str) -> None: ...


class Stream:
    """One subscription. Iterate it in one task; everything else may be called from any task of the loop."""

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
        """The same events, but each time all that have come: for programs that handle many at once."""
        while True:
            try:
                events = await self.inbox.take_all()
            except Ended:
                return
            yield events

    async def join(self, id: str, info: Any = None) -> None:
        """Be present here as `id`, and stay so over lost connections, until `leave`."""
        await self._owner.join(self.identifier, Member(id, b"" if info is None else _json(info, "the info of a member")))

    async def leave(self) -> None:
        await self._owner.leave(self.identifier)

    async def presence(self) -> PresenceState:
        """Who is here now. Raises PresenceUnavailable or NoAnswer."""
        return await self._owner.presence(self.identifier)

    async def whisper(self, data: Any) -> None:
        """Tell the other clients of this stream something that is not kept. Waits for the connection; there is no receipt."""
        await self._owner.say(Whisper(self.identifier, _json(data, "a whisper")))

    async def perform(self, action: str, **data: Any) -> None:
        """Call an action of the channel. Waits for the connection; there is no receipt."""
        text = _json({**data, "action": action}, "the data of an action").decode()
        await self._owner.say(Perform(self.identifier, text))

    async def unsubscribe(self) -> None:
        """The iteration ends once everything that had arrived is read."""
        await self._owner.unsubscribe(self.identifier)

    # --- for the session ---

    def offer(self, event: Event) -> None:
        if self._presence_events or not isinstance(event, PresenceChange):
            self.inbox.put(event)

    def offer_all(self, events: Sequence[Event]) -> None:
        """Of which none is a change of presence."""
        self.inbox.put_all(events)

    def confirm(self) -> None:
        self.live.set()
        if not self.confirmed.done():
            self.confirmed.set_result(None)

    def answer(self, presence: PresenceState | None) -> None:
        """To the oldest query; its program may have given up waiting."""
        query = self.queries.popleft() if self.queries else None
        if query is None or query.done():
            return
        if presence is None:
            query.set_exception(PresenceUnavailable("the server has no presence for this stream"))
        else:
            query.set_result(presence)

    def finish(self, end: Exception) -> None:
        """No more events; whoever waits for an answer gets `end` instead."""
        self._end = self._end or end
        waiting: list[asyncio.Future[Any]] = [self.confirmed, *self.queries]
        for answer in waiting:
            if not answer.done():
                answer.set_exception(end)
        self.inbox.finish(end)
        self.live.set()

    async def until_live(self) -> None:
        """Raises what the stream ended with."""
        await self.live.wait()
        if self._end is not None:
            raise self._end


def _json(value: object, what: str) -> bytes:
    """Raises ValueError for what no server would take: it would end the connection."""
    try:
        text = msgspec.json.encode(value)
    except RecursionError:
        raise ValueError(f"{what} is {TOO_DEEP}") from None
    if too_deep(text):
        raise ValueError(f"{what} is {TOO_DEEP}")
    return text

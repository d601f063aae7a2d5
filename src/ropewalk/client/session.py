"""The session at work: it dials, reads, carries out what the state decides, and hands events to the streams.

One task reads the socket, and only while there is room for what it reads: a slow program slows the socket, nothing is dropped.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from aiohttp import ClientSession
from msgspec import Struct
from msgspec.structs import replace

from ropewalk.client.effects import Confirmed, Effect, End, PresenceResult, Redial, Send, SubscriptionDenied, Yield
from ropewalk.client.errors import (
    STREAM_MAY_BE_AWAY,
    AlreadySubscribed,
    Ended,
    NoAnswer,
    SubscriptionRejected,
    TokenExpired,
    Unreachable,
)
from ropewalk.client.events import PresenceState
from ropewalk.client.inbox import EventInbox
from ropewalk.client.link import CableLink, DialOptions, dial
from ropewalk.client.lost_connection import LostConnection
from ropewalk.client.state import ClientState
from ropewalk.client.stream import Stream
from ropewalk.core.backoff import Backoff, Chance
from ropewalk.model.clock import Clock
from ropewalk.model.closing import TOKEN_EXPIRED
from ropewalk.model.commands import Perform, Whisper
from ropewalk.model.errors import MalformedFrame
from ropewalk.model.messages import Position
from ropewalk.model.presence import Member
from ropewalk.protocol.client_commands import ClientCommand
from ropewalk.protocol.server_messages import ServerMessage, Welcome

logger = logging.getLogger("ropewalk.client")

Refresh = Callable[[], Awaitable[str]]
T = TypeVar("T")


class SessionOptions(Struct, frozen=True):
    """Options of a session. `inbox_size`: events that wait for a slow reader before the socket is no longer read."""

    inbox_size: int
    answer_timeout: float
    backoff: Backoff
    chance: Chance
    clock: Clock


class CableSession:
    """Begin with `open`, end with `close`. In between it comes back by itself whenever a connection is lost."""

    def __init__(self, http: ClientSession, call: DialOptions, options: SessionOptions, refresh: Refresh | None) -> None:
        self._http = http
        self._call = call
        self._options = options
        self._refresh = refresh
        self._state = ClientState()
        self._streams: dict[str, Stream] = {}
        self._link: CableLink | None = None
        self._task: asyncio.Task[None] | None = None
        self._end: Exception | None = None
        self._lost = LostConnection()
        self._attempt = 0
        self._pause: float | None = None
        self._awaiting = 0
        self._room = asyncio.Event()
        self._room.set()

    # --- beginning and end --------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Returns when the server has welcomed us. Raises Unreachable or Disconnected."""
        welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(welcomed))
        try:
            await welcomed
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._finish(Ended("the client is closed"))

    def cut(self) -> None:
        """Break the connection, as a failing network would. The session comes back by itself."""
        if self._link is not None:
            self._link.cut()

    def _finish(self, end: Exception) -> None:
        self._end = self._end or end
        for stream in self._streams.values():
            stream.finish(end)
        self._streams.clear()

    # --- what streams and programs ask for ----------------------------------------------------------------------------

    async def subscribe(
        self, identifier: str, since: float | None, positions: dict[str, Position], presence_events: bool
    ) -> Stream:
        """Raises SubscriptionRejected, AlreadySubscribed or NoAnswer."""
        if self._end is not None:
            raise self._end
        if identifier in self._streams:
            raise AlreadySubscribed(f"this client is subscribed to {identifier} already")
        inbox = EventInbox(self._options.inbox_size, self._make_room)
        stream = self._streams[identifier] = Stream(self, identifier, inbox, presence_events)
        try:
            await self._commit(self._state.subscribe(identifier, self._options.clock(), since, positions))
            await self._answered(stream.confirmed, STREAM_MAY_BE_AWAY)
        except BaseException:
            await self.unsubscribe(identifier)
            raise
        return stream

    async def unsubscribe(self, identifier: str) -> None:
        stream = self._streams.pop(identifier, None)
        if stream is not None:
            stream.finish(Ended("the stream is unsubscribed"))
            await self._commit(self._state.unsubscribe(identifier))

    async def join(self, identifier: str, member: Member) -> None:
        self._stream(identifier)
        await self._commit(self._state.join(identifier, member))

    async def leave(self, identifier: str) -> None:
        self._stream(identifier)
        await self._commit(self._state.leave(identifier))

    async def presence(self, identifier: str) -> PresenceState:
        page = await self._presence_page(identifier, "")
        members = list(page.members)
        while page.next and page.members:
            page = await self._presence_page(identifier, page.next)
            members += page.members
        return PresenceState(page.total, tuple(members))

    async def _presence_page(self, identifier: str, after: str) -> PresenceState:
        answer: asyncio.Future[PresenceState] = asyncio.get_running_loop().create_future()
        self._stream(identifier).queries.append(answer)
        await self._commit(self._state.query(identifier, after))
        return await self._answered(answer)

    async def say(self, command: Whisper | Perform) -> None:
        await self._stream(command.identifier).until_live()
        await self._put(command)

    def _stream(self, identifier: str) -> Stream:
        if identifier not in self._streams:
            raise self._end or Ended("the stream has ended")
        return self._streams[identifier]

    async def _commit(self, effects: Sequence[Effect]) -> None:
        """The state remembers what it wants said, so a connection that breaks now only delays it."""
        with suppress(Unreachable):
            await self._carry_out(effects)

    async def _answered(self, answer: asyncio.Future[T], hint: str = "") -> T:
        """While somebody waits for an answer the socket is read on, also past a full inbox that may be in front of it."""
        self._awaiting += 1
        self._make_room()
        try:
            async with asyncio.timeout(self._options.answer_timeout):
                return await answer
        except TimeoutError:
            raise NoAnswer(self._options.answer_timeout, hint) from None
        finally:
            self._awaiting -= 1
            self._make_room()

    def _make_room(self) -> None:
        if self._awaiting or not any(stream.inbox.full for stream in self._streams.values()):
            self._room.set()
        else:
            self._room.clear()

    # --- the reading task ---------------------------------------------------------------------------------------------

    async def _run(self, welcomed: asyncio.Future[None]) -> None:
        try:
            while True:
                try:
                    await self._converse(welcomed)
                except Unreachable as error:
                    if not welcomed.done():
                        raise
                    self._lost.log(error)
                await asyncio.sleep(self._next_pause())
        except Exception as error:  # whatever it is, those who wait must hear of it
            self._finish(error)
            if not welcomed.done():
                welcomed.set_exception(error)

    def _next_pause(self) -> float:
        """What the server asked for, the first time; then longer and longer."""
        pause, self._pause = self._pause, None
        if pause is not None:
            return pause
        self._attempt += 1
        return self._options.backoff.delay(self._attempt - 1, self._options.chance)

    async def _converse(self, welcomed: asyncio.Future[None]) -> None:
        """One connection, from the first message to the last. Returns when the state wants another one."""
        link = self._link = await dial(self._http, replace(self._call, sid=self._state.sid))
        try:
            while True:
                await self._room.wait()
                try:
                    message = await link.receive()
                except MalformedFrame as error:
                    if not self._state.welcomed:
                        raise Unreachable(str(error)) from error
                    logger.warning("a frame cannot be read", extra={"reason": error.reason})
                    continue
                self._note_welcome(message, welcomed)
                if await self._carry_out(self._state.receive(message, self._options.clock())):
                    return
        finally:
            self._link = None
            self._state.lost()
            for stream in self._streams.values():
                stream.live.clear()
            await link.close()

    def _note_welcome(self, message: ServerMessage, welcomed: asyncio.Future[None]) -> None:
        if isinstance(message, Welcome):
            self._attempt = 0
            self._lost.welcomed()
            if not welcomed.done():
                welcomed.set_result(None)

    async def _carry_out(self, effects: Sequence[Effect]) -> bool:
        """True if this connection is to be left."""
        for effect in effects:
            match effect:
                case Send(command):
                    await self._put(command)
                case Redial(new_token, after):
                    self._pause = after
                    await self._renew(new_token)
                    return True
                case End(error):
                    raise error
                case _:
                    self._tell(effect)
        self._make_room()
        return False

    def _tell(self, effect: Yield | Confirmed | SubscriptionDenied | PresenceResult) -> None:
        stream = self._streams.get(effect.identifier)
        if stream is None:
            return  # the program unsubscribed while something before this was sent
        match effect:
            case Yield(_, event):
                stream.offer(event)
            case Confirmed():
                stream.confirm()
            case SubscriptionDenied(identifier):
                del self._streams[identifier]
                stream.finish(SubscriptionRejected(identifier))
            case PresenceResult(_, presence):
                stream.answer(presence)

    async def _put(self, command: ClientCommand) -> None:
        if self._link is None:
            raise Unreachable("there is no connection now")
        await self._link.send(command)

    async def _renew(self, new_token: bool) -> None:
        if not new_token:
            return
        if self._refresh is None:
            raise TokenExpired(TOKEN_EXPIRED.reason)
        self._call = replace(self._call, token=await self._refresh())

"""The session: passes data through codec and state, executes the state's effects, and answers the callers that wait."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from ropewalk.client.codec import Codec, Target
from ropewalk.client.connection import Connection, Refresh, SessionOptions
from ropewalk.client.effects import (
    CallAnswered,
    Confirmed,
    Effect,
    End,
    PresenceResult,
    Redial,
    Retry,
    Send,
    SubscriptionDenied,
    WritePushes,
    Yield,
)
from ropewalk.client.errors import (
    STREAM_MAY_BE_AWAY,
    AlreadySubscribed,
    CableError,
    Disconnected,
    Ended,
    NoAnswer,
    NotSupported,
    PublicationRefused,
    PublishError,
    PublishUnanswered,
    SubscriptionRejected,
    Unreachable,
)
from ropewalk.client.events import KeptMessages, PresenceState
from ropewalk.client.link import Dialer
from ropewalk.client.messages import DeliveredMessages
from ropewalk.client.state import ClientState, ServerReply
from ropewalk.client.stream import EventInbox, Stream
from ropewalk.model.commands import Perform, Whisper
from ropewalk.model.errors import MalformedFrame
from ropewalk.model.messages import Position
from ropewalk.model.presence import Member
from ropewalk.protocol.broky import frames
from ropewalk.protocol.server_messages import ServerPing, Welcome

FLUSH_SECONDS = 1.0
"""Time for the server to handle unacknowledged messages before a client closes."""

T = TypeVar("T")


class Kind(Enum):
    PUSH = "push"
    READ = "read"
    PING = "ping"
    SEND = "send"


class PendingCalls:
    """Callers that wait for the answer to a push, a read or a ping, or for a connection to send on. One future per ref."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[Kind, asyncio.Future[Any]]] = {}

    @property
    def publishing(self) -> bool:
        """Whether a push or a send waits."""
        return any(kind in (Kind.PUSH, Kind.SEND) for kind, _ in self._calls.values())

    def add(self, kind: Kind, ref: int) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[ref] = kind, future
        return future

    def discard(self, ref: int) -> bool:
        """The caller has given up. False if the call was answered."""
        return self._calls.pop(ref, None) is not None

    def resolve(self, ref: int, answer: object) -> None:
        """Exceptions are raised to the caller."""
        _, future = self._calls.pop(ref, (None, None))
        if future is None or future.done():
            return
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def resolve_all(self, kind: Kind, answer: object = None) -> None:
        for ref in [ref for ref, (each, _) in self._calls.items() if each is kind]:
            self.resolve(ref, answer)


class ReconnectingSession:
    """Start with `open`, or with the first push if `on_demand`; end with `close`. Reconnects until then."""

    def __init__(
        self, dialer: Dialer, codec: Codec, options: SessionOptions, token: str = "", refresh: Refresh | None = None
    ) -> None:
        self.codec = codec
        self._options = options
        self._state = ClientState(refreshes_unauthorized=codec.one_token_error and refresh is not None)
        self._connection = Connection(dialer, codec, options, self, token, refresh)
        self._streams: dict[str, Stream] = {}
        self._pending = PendingCalls()
        self._end: Exception | None = None
        self._max_frame = 0
        self._unflushed = False

    # --- start and end ---

    async def open(self) -> None:
        """Returns when the server has accepted the session. Raises Unreachable or Disconnected."""
        try:
            await self._connection.open()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._unflushed and self._state.welcomed:
            with suppress(CableError, TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self.flush()
        await self._connection.close()
        self._finish(Ended("the client is closed"))

    def cut(self) -> None:
        """Abort the connection, like a network failure. The session reconnects."""
        self._connection.cut()

    def _finish(self, end: Exception) -> None:
        self._end = self._end or end
        for identifier, stream in self._streams.items():
            stream.finish(end)
            self._connection.relieved(identifier)
        self._streams.clear()
        self._state.calls.pushes.discard_all()
        push_error = self._as_push_error(end)
        for kind in Kind:
            self._pending.resolve_all(kind, push_error if kind in (Kind.PUSH, Kind.SEND) else end)

    # --- streams ---

    async def subscribe(self, target: Target) -> Stream:
        """Raises SubscriptionRejected, AlreadySubscribed or NoAnswer."""
        if self._end is not None:
            raise self._end
        identifier = target.identifier
        if identifier in self._streams:
            raise AlreadySubscribed(f"this client is already subscribed to {identifier}")
        self.codec.add(target)
        inbox = EventInbox(self._options.inbox_size, partial(self._connection.relieved, identifier))
        stream = self._streams[identifier] = Stream(self, identifier, inbox, target.presence_events)
        try:
            self._execute(self._state.subscribe(identifier, target.track, self._options.clock()))
            await self._answer_to(stream.confirmed, STREAM_MAY_BE_AWAY)
        except BaseException:
            await self.unsubscribe(identifier)
            raise
        return stream

    async def unsubscribe(self, identifier: str) -> None:
        stream = self._streams.pop(identifier, None)
        if stream is not None:
            stream.finish(Ended("the stream is unsubscribed"))
            self._connection.relieved(identifier)
            self._execute(self._state.unsubscribe(identifier))
            self.codec.remove(identifier)

    async def join(self, identifier: str, member: Member) -> None:
        self._stream(identifier, "presence")
        self._execute(self._state.join(identifier, member))

    async def leave(self, identifier: str) -> None:
        self._stream(identifier, "presence")
        self._execute(self._state.leave(identifier))

    async def presence(self, identifier: str) -> PresenceState:
        page = await self._presence_page(identifier, "")
        members = list(page.members)
        while page.next and page.members:
            page = await self._presence_page(identifier, page.next)
            members += page.members
        return PresenceState(page.total, tuple(members))

    async def _presence_page(self, identifier: str, after: str) -> PresenceState:
        answer: asyncio.Future[PresenceState] = asyncio.get_running_loop().create_future()
        self._stream(identifier, "presence").queries.append(answer)
        self._execute(self._state.query(identifier, after))
        return await self._answer_to(answer)

    async def send_command(self, command: Whisper | Perform) -> None:
        what = "a whisper" if isinstance(command, Whisper) else "an action of a channel"
        await self._stream(command.identifier, what).until_live()
        if self._connection.link is None:
            raise Unreachable("there is no connection now")
        self._connection.write(self.codec.encode(command, 0))
        await self._connection.link.drain()

    def _stream(self, identifier: str, what: str) -> Stream:
        if not self.codec.channels:
            raise NotSupported(what)
        if identifier not in self._streams:
            raise self._end or Ended("the stream has ended")
        return self._streams[identifier]

    # --- pushes and reads ---

    def next_ref(self) -> int:
        return self._state.calls.next_ref()

    async def push(self, ref: int, frame: bytes) -> Position:
        """Returns the position of the first message. Raises PublishError."""
        self._check(frame)
        answer = self._pending.add(Kind.PUSH, ref)
        self._execute(self._state.calls.push(ref, frame))
        self._connection.start()
        self._connection.waits(1)
        try:
            return await answer  # type: ignore[no-any-return]
        finally:
            self._connection.waits(-1)
            if self._pending.discard(ref):
                self._state.calls.pushes.discard(ref)

    async def send(self, frame: bytes) -> None:
        """Without an answer. Waits for a connection, and while the network is congested. Raises PublishError."""
        self._check(frame)
        connection = self._connection
        while connection.link is None or not self._state.welcomed or not connection.link.writable:
            if connection.link is not None and self._state.welcomed:
                await connection.link.drain()
            else:
                connection.start()
                await self._pending.add(Kind.SEND, self.next_ref())
            self._check(frame)
        self._unflushed = True
        connection.link.write(frame)

    async def flush(self) -> None:
        """Until the server has handled everything that was sent. Raises Unreachable if the connection was lost before."""
        if self._connection.link is None or not self._state.welcomed:
            raise self._end or Unreachable("there is no connection now")
        self._unflushed = False
        ref = self.next_ref()
        pong = self._pending.add(Kind.PING, ref)
        self._connection.write(self.codec.encode(frames.Ping(ref), 0))
        await self._answer_to(pong)

    async def read(self, stream: str, requested: bytes, after: Position, limit: int) -> KeptMessages:
        """Raises HistoryRefused, HistoryUnavailable or NoAnswer."""
        if self._end is not None:
            raise self._end
        ref = self.next_ref()
        answer: asyncio.Future[KeptMessages] = self._pending.add(Kind.READ, ref)
        try:
            self._execute(self._state.calls.read(ref, stream, requested, after, limit))
            return await self._answer_to(answer)
        finally:
            self._pending.discard(ref)
            self._state.calls.discard_read(ref)

    def _check(self, frame: bytes) -> None:
        if self._end is not None:
            raise self._as_push_error(self._end)
        size = len(frame) - 4
        if self._max_frame and size > self._max_frame:
            raise PublicationRefused(f"the server accepts frames of at most {self._max_frame} bytes, and this has {size}")

    def _retry(self, ref: int, failures: int, error: CableError) -> None:
        if failures >= self._options.attempts:
            self._state.calls.pushes.discard(ref)
            self._pending.resolve(ref, error)
            return
        pause = self._options.backoff.delay(failures - 1, self._options.chance)
        asyncio.get_running_loop().call_later(pause, lambda: self._execute(self._state.calls.retry(ref)))

    def _as_push_error(self, error: Exception) -> Exception:
        match error:
            case Disconnected():
                return self._state.calls.error or PublicationRefused(error.reason)
            case Unreachable() if not isinstance(error, PublishError):
                return PublishUnanswered(f"{self._connection.url} gave no answer: {error}")
        return error

    async def _answer_to(self, answer: asyncio.Future[T], hint: str = "") -> T:
        self._connection.waits(1)
        try:
            async with asyncio.timeout(self._options.answer_timeout):
                return await answer
        except TimeoutError:
            raise NoAnswer(self._options.answer_timeout or 0, hint) from None
        finally:
            self._connection.waits(-1)

    # --- calls of the connection ---

    @property
    def sid(self) -> str:
        return self._state.sid

    @property
    def publishing(self) -> bool:
        return self._pending.publishing

    def receive(self, data: bytes) -> None:
        connection, now = self._connection, self._options.clock()
        try:
            for reply in self.codec.decode(data):
                self._execute(self._state.receive(reply, now))
                if not isinstance(reply, DeliveredMessages):
                    self._note(reply)
                if connection.verdict is not None:
                    return
        except (MalformedFrame, UnicodeDecodeError) as error:
            connection.leave(Unreachable(f"{connection.url} sent a malformed message: {error}"))
        connection.pace()

    def disconnected(self) -> None:
        self._state.lost()
        lost = Unreachable("the connection was lost: messages sent without an answer may be lost too")
        self._pending.resolve_all(Kind.PING, lost)
        for stream in self._streams.values():
            stream.live.clear()

    def attempt_failed(self, error: Exception, max_attempts: int, last: bool) -> None:
        push_error = self._as_push_error(error)
        for ref in self._state.calls.pushes.attempt_failed(max_attempts):
            self._pending.resolve(ref, push_error)
        if last:
            self._pending.resolve_all(Kind.SEND, push_error)

    def ended(self, error: Exception) -> None:
        self._finish(error)
        if self._options.on_demand:
            self._end = None  # the next push tries again

    def _note(self, reply: ServerReply) -> None:
        match reply:
            case Welcome():
                self._connection.accepted()
                self._pending.resolve_all(Kind.SEND)
            case frames.Welcome(max_frame=max_frame):
                self._max_frame = max_frame
            case ServerPing(timestamp):
                self._connection.pinged(timestamp)

    # --- effects ---

    def _execute(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Yield(identifier, events):
                    stream = self._streams.get(identifier)
                    if stream is not None:
                        stream.offer(events)
                        if stream.inbox.full:
                            self._connection.full(identifier)
                case WritePushes(pushes):
                    self._connection.write(pushes[0] if len(pushes) == 1 else b"".join(pushes))
                case Send(command):
                    self._connection.write(self.codec.encode(command, self.next_ref()))
                case Redial() | End():
                    self._connection.leave(effect)
                case _:
                    self._notify(effect)

    def _notify(self, effect: Confirmed | SubscriptionDenied | PresenceResult | CallAnswered | Retry) -> None:
        match effect:
            case CallAnswered(ref, answer):
                self._pending.resolve(ref, answer)
            case Retry(ref, failures, error):
                self._retry(ref, failures, error)
            case Confirmed(identifier) if identifier in self._streams:
                self._streams[identifier].confirm()
            case SubscriptionDenied(identifier, reason) if identifier in self._streams:
                self._streams.pop(identifier).finish(SubscriptionRejected(identifier, reason))
            case PresenceResult(identifier, presence) if identifier in self._streams:
                self._streams[identifier].answer(presence)

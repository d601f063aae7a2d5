"""The session over TCP at work: it dials, passes frames to the state, carries out what that decides, and wakes who waits.

Frames are handled where they arrive, without a task between: a burst of them costs its readers one wakeup. The socket is read
only while there is room for what comes: a slow program slows the socket, nothing is dropped.
"""

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from ropewalk.client.addresses import TcpAddress
from ropewalk.client.broky_failures import PushFailures
from ropewalk.client.broky_link import BrokyLink, dial
from ropewalk.client.broky_options import BrokyOptions
from ropewalk.client.broky_pace import ReadingPace
from ropewalk.client.broky_state import (
    BrokyEffect,
    BrokyState,
    DeliverEvents,
    Ponged,
    PushRefused,
    PushRegistered,
    Retry,
    WasRead,
    WriteBytes,
    WriteFrame,
)
from ropewalk.client.broky_track import AnyTrack
from ropewalk.client.broky_unsupported import MessagesOnly
from ropewalk.client.broky_waiters import BrokyWaiters
from ropewalk.client.broky_watch import LinkWatch
from ropewalk.client.effects import Confirmed, End, Redial, SubscriptionDenied
from ropewalk.client.errors import (
    STREAM_MAY_BE_AWAY,
    AlreadySubscribed,
    CableError,
    Ended,
    NoAnswer,
    PublicationRefused,
    PublishUnavailable,
    SubscriptionRejected,
    Unreachable,
)
from ropewalk.client.events import KeptMessages
from ropewalk.client.inbox import EventInbox
from ropewalk.client.lost_connection import LostConnection
from ropewalk.client.session import Refresh
from ropewalk.client.stream import Stream
from ropewalk.model.errors import MalformedFrame
from ropewalk.model.messages import Position
from ropewalk.protocol.broky.frames import Body, Error, Hello, Ping, Run, Welcome
from ropewalk.protocol.broky.runs import decode
from ropewalk.protocol.broky.splitter import FrameSplitter
from ropewalk.protocol.broky.tables import encode

FLUSH_SECONDS = 1.0
"""What was sent without an answer has so long to be handled before a client closes."""

CLOSE_SECONDS = 1.0
"""How long a client that closes waits for the end of its connection before it aborts it."""

T = TypeVar("T")


class BrokySession(MessagesOnly):
    """Begin with `open`, or with the first push if it is `on_demand`; end with `close`. In between it comes back by itself
    whenever a connection is lost."""

    def __init__(
        self,
        address: TcpAddress,
        token: str,
        tls: ssl.SSLContext | None,
        options: BrokyOptions,
        refresh: Refresh | None = None,
    ) -> None:
        self._address = address
        self._token = token
        self._tls = tls
        self._options = options
        self._refresh = refresh
        self._state = BrokyState(refresh is not None)
        self._streams: dict[str, Stream] = {}
        self._waiters = BrokyWaiters()
        self._failures = PushFailures(address.url, self._state.pushes, self._waiters, options)
        self._pace = ReadingPace()
        self._splitter = FrameSplitter()
        self._link: BrokyLink | None = None
        self._left: BrokyLink | None = None  # the last one that was let go
        self._opening: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._verdict: Redial | End | Unreachable | None = None
        self._end: Exception | None = None
        self._max_frame = 0
        self._writable = False
        self._unflushed = False
        self._lost = LostConnection(told=options.on_demand)
        self._attempt = 0

    # --- beginning and end --------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Returns when the server has welcomed us. Raises Unreachable or Disconnected."""
        self._opening = asyncio.get_running_loop().create_future()
        self._start()
        try:
            await self._opening
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._unflushed and self._state.welcomed:
            with suppress(CableError, TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self.flush()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._finish(Ended("the client is closed"))
        if self._left is not None:
            await self._left.wait_disconnected(CLOSE_SECONDS)

    def cut(self) -> None:
        """Break the connection, as a failing network would. The session comes back by itself."""
        if self._link is not None:
            self._link.cut()

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _finish(self, end: Exception) -> None:
        """No more of anything that is under way."""
        self._end = self._end or end
        for stream in self._streams.values():
            stream.finish(end)
        self._streams.clear()
        self._pace.full.clear()
        self._state.pushes.forget_all()
        self._waiters.ended(end, self._failures.as_told(end))

    # --- what programs ask for ----------------------------------------------------------------------------------------

    async def subscribe(self, identifier: str, key: bytes, asked: bytes, track: AnyTrack) -> Stream:
        """Raises SubscriptionRejected, AlreadySubscribed or NoAnswer."""
        if self._end is not None:
            raise self._end
        if identifier in self._streams:
            raise AlreadySubscribed(f"this client is subscribed to {identifier} already")
        if self._state.overlaps(key, track):
            raise AlreadySubscribed(f"{identifier} overlaps with what this client is subscribed to: use another client for it")
        inbox = EventInbox(self._options.inbox_size, partial(self._pace.relieved, identifier))
        stream = self._streams[identifier] = Stream(self, identifier, inbox, presence_events=False)
        try:
            self._carry_out(self._state.subscribe(identifier, key, asked, track))
            await self._answered(stream.confirmed, STREAM_MAY_BE_AWAY)
        except BaseException:
            await self.unsubscribe(identifier)
            raise
        return stream

    async def unsubscribe(self, identifier: str) -> None:
        stream = self._streams.pop(identifier, None)
        if stream is not None:
            stream.finish(Ended("the stream is unsubscribed"))
            self._pace.relieved(identifier)
            self._carry_out(self._state.unsubscribe(identifier))

    async def read(self, stream: str, asked: bytes, after: Position | None, limit: int) -> KeptMessages:
        """Raises HistoryRefused, HistoryUnavailable or NoAnswer."""
        if self._end is not None:
            raise self._end
        ref = self.next_ref()
        answer = self._waiters.read(ref)
        try:
            self._carry_out(self._state.read(ref, stream, asked, after, limit))
            return await self._answered(answer)
        finally:
            self._waiters.gave_up_reading(ref)
            self._state.reads.forget(ref)

    async def push(self, ref: int, frame: bytes) -> Position:
        """The position of its first message. Raises PublishError."""
        self._check(frame)
        answer = self._waiters.push(ref)
        self._carry_out(self._state.push(ref, frame))
        self._start()
        self._pace.wait_begins()
        try:
            return await answer
        finally:
            self._pace.wait_ends()
            if self._waiters.gave_up(ref):
                self._state.pushes.forget(ref)

    async def send(self, frame: bytes) -> None:
        """Without an answer. Waits only for a connection that takes it. Raises PublishError."""
        self._check(frame)
        while not self._writable:
            self._start()
            await self._waiters.sender()
            self._check(frame)
        self._unflushed = True
        self._put(frame)

    async def flush(self) -> None:
        """Until the server has handled all that was sent. Raises Unreachable if the connection was lost before."""
        if self._link is None or not self._state.welcomed:
            raise self._end or Unreachable("there is no connection now")
        self._unflushed = False
        ref = self.next_ref()
        pong = self._waiters.pong(ref)
        self._put(encode(Ping(ref)))
        await self._answered(pong)

    def next_ref(self) -> int:
        return self._state.next_ref()

    def _check(self, frame: bytes) -> None:
        if self._end is not None:
            raise self._failures.as_told(self._end)
        if self._max_frame and len(frame) - 4 > self._max_frame:
            raise PublicationRefused(
                f"the server takes frames of at most {self._max_frame} bytes, and this has {len(frame) - 4}"
            )

    async def _answered(self, answer: asyncio.Future[T], hint: str = "") -> T:
        """While somebody waits for an answer the socket is read on, also past a full inbox that may be in front of it."""
        self._pace.wait_begins()
        try:
            async with asyncio.timeout(self._options.answer_timeout):
                return await answer
        except TimeoutError:
            assert self._options.answer_timeout is not None  # or nothing had ended the wait
            raise NoAnswer(self._options.answer_timeout, hint) from None
        finally:
            self._pace.wait_ends()

    # --- the link calls -----------------------------------------------------------------------------------------------

    def arrived(self, data: bytes) -> None:
        try:
            for frame in self._splitter.feed(data):
                body = decode(frame)
                self._carry_out(self._state.receive(body))
                if not isinstance(body, Run):
                    self._note(body)
                if self._verdict is not None:
                    return
        except (MalformedFrame, UnicodeDecodeError) as error:
            self._judge(Unreachable(f"{self._address.url} does not speak Broky as it should: {error}"))
        if self._pace.full:
            self._pace.keep()

    def writing(self, possible: bool) -> None:
        self._writable = possible and self._state.welcomed
        if self._writable:
            self._waiters.wake_senders()

    def _note(self, body: Body) -> None:
        match body:
            case Welcome(max_frame=max_frame) if self._link is not None:
                self._max_frame = max_frame
                self._attempt = 0
                self._lost.welcomed()
                self._watch(self._link)
                self.writing(possible=True)
                if self._opening is not None and not self._opening.done():
                    self._opening.set_result(None)
            case Error():
                self._failures.last_error = body

    def _watch(self, link: BrokyLink) -> None:
        if self._options.ping_interval:
            watch = LinkWatch(link, self._options.ping_interval, lambda: link.write(encode(Ping(self.next_ref()))), self._judge)
            watch.look()

    # --- the dialing task ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        opening = self._opening
        try:
            while True:
                pause = None
                try:
                    pause = await self._converse()
                except Unreachable as error:
                    if opening is not None and not opening.done():
                        raise
                    self._lost.log(error)
                    self._failures.attempt_failed(error, self._attempt)
                if self._options.on_demand and not self._waiters.anybody_pushes:
                    return
                await asyncio.sleep(self._next_pause() if pause is None else pause)
        except Exception as error:  # whatever it is, those who wait must hear of it
            self._finish(error)
            if self._options.on_demand:
                self._end = None  # the next push tries again
            if opening is not None and not opening.done():
                opening.set_exception(error)

    def _next_pause(self) -> float:
        self._attempt += 1
        return self._options.backoff.delay(self._attempt - 1, self._options.chance)

    async def _converse(self) -> float | None:
        """One connection, from the first frame to the last. Returns what the server asks to wait before the next one."""
        self._splitter = FrameSplitter()
        self._verdict, self._failures.last_error = None, Error()
        seconds = self._options.connect_timeout
        link = self._link = self._pace.link = await dial(self, self._address, self._tls, seconds)
        try:
            link.write(encode(Hello(token=self._token.encode())))
            await asyncio.wait([link.closed], timeout=seconds)
            if not link.closed.done() and not self._state.welcomed:
                raise Unreachable(f"{self._address.url} did not answer within {seconds:g} seconds")
            await link.closed
            if self._verdict is None:
                met = self._state.welcomed
                self._verdict = Unreachable(
                    f"{self._address.url} closed the connection{'' if met else f'; {self._address.hint}'}"
                )
        finally:
            self._let_go(link)
        return await self._obey(self._verdict)

    def _let_go(self, link: BrokyLink) -> None:
        self._link = self._pace.link = None
        self._writable = False
        self._state.lost()
        self._waiters.lost()
        for stream in self._streams.values():
            stream.live.clear()
        link.leave()
        self._left = link

    async def _obey(self, verdict: Redial | End | Unreachable) -> float | None:
        match verdict:
            case End(error):
                raise error
            case Redial(new_token=True) if self._refresh is not None:
                self._token = await self._refresh()
                return None
            case Redial(after=after):
                self._failures.attempt_failed(PublishUnavailable(self._failures.last_error.text), self._attempt)
                return after
            case Unreachable():
                raise verdict

    # --- carrying out -------------------------------------------------------------------------------------------------

    def _carry_out(self, effects: Sequence[BrokyEffect]) -> None:
        for effect in effects:
            match effect:
                case DeliverEvents(identifier, events):
                    stream = self._streams.get(identifier)
                    if stream is not None:
                        stream.offer_all(events)
                        if stream.inbox.full:
                            self._pace.full.add(identifier)
                case WriteBytes(pushes):
                    self._put(pushes[0] if len(pushes) == 1 else b"".join(pushes))
                case WriteFrame(frame):
                    self._put(encode(frame))
                case Redial() | End():
                    self._judge(effect)
                case _:
                    self._tell(effect)

    def _tell(self, effect: PushRegistered | PushRefused | Retry | Confirmed | SubscriptionDenied | WasRead | Ponged) -> None:
        match effect:
            case PushRegistered(ref, position):
                self._waiters.registered(ref, position)
            case PushRefused(ref, error):
                self._waiters.refused(ref, error)
            case Retry(ref, failures, error):
                self._failures.retry(ref, failures, error, lambda: self._carry_out(self._state.again(ref)))
            case WasRead(ref, answer):
                self._waiters.was_read(ref, answer)
            case Ponged(ref):
                self._waiters.ponged(ref)
            case Confirmed(identifier) if identifier in self._streams:
                self._streams[identifier].confirm()
            case SubscriptionDenied(identifier, reason) if identifier in self._streams:
                self._streams.pop(identifier).finish(SubscriptionRejected(identifier, reason))

    def _put(self, data: bytes) -> None:
        if self._link is not None:
            self._link.write(data)

    def _judge(self, verdict: Redial | End | Unreachable) -> None:
        """How this connection ends."""
        self._verdict = verdict
        if self._link is not None:
            self._link.leave()

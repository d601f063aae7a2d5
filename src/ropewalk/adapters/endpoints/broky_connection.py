"""One connection over TCP: pushes go to `broky_pushes`, all other frames to its session. Frames are handled in order, except
that a command waiting for the store or for credit does not delay pushes."""

import asyncio
from collections.abc import Awaitable, Coroutine
from socket import socket
from typing import Any, Protocol

from ropewalk.adapters.endpoints.broky_pushes import CollectedRuns, Push
from ropewalk.adapters.endpoints.broky_shared import MAX_UNACKED, BrokyShared, ClientKind
from ropewalk.adapters.endpoints.head_timeouts import FrameWatch
from ropewalk.adapters.endpoints.routes import completed
from ropewalk.adapters.endpoints.socket_writes import SocketWrites, unsent_bytes
from ropewalk.adapters.endpoints.turns import FREE_SECONDS, TURN_SECONDS
from ropewalk.model.closing import UNFINISHED_MESSAGE
from ropewalk.model.errors import MalformedFrame
from ropewalk.model.refusals import Refusal
from ropewalk.ports import SessionHandle
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.codec import BrokyCodec, encode_error, error, pong
from ropewalk.protocol.broky.credit import CreditMeter
from ropewalk.protocol.broky.frames import Reason
from ropewalk.protocol.broky.read_ahead import ReadAhead
from ropewalk.protocol.broky.runs import decode
from ropewalk.protocol.broky.tables import encode
from ropewalk.protocol.proxies import Peer
from ropewalk.protocol.stream_keys import decode_key

MAX_HELLO_BYTES = 16 * 1024
"""Largest frame of a client that is not authenticated yet."""

CLOSE_TIMEOUT = 1.0
MAX_BATCH_BYTES = 32 * 1024
"""Bytes of runs on the fast path between two checks of the clock."""

MAX_IMMEDIATE_BYTES = 4096
"""A connection with at most this many unhandled bytes needs no turn, even if other connections are busy."""


class ConnectionTable(Protocol):
    """The table of connections, as used by one of them."""

    def left(self, connection: "BrokyConnection") -> None:
        """Remove a connection that has ended."""


class BrokyConnection(asyncio.Protocol):
    """A `Connection`, if it has a session. `write` is the transport's own method.

    Args:
        sock: the socket of the transport, without TLS.
    """

    def __init__(
        self, table: ConnectionTable, shared: BrokyShared, transport: asyncio.Transport, peer: Peer, sock: socket | None = None
    ) -> None:
        self._table = table
        self._shared = shared
        self._transport = transport
        self._peer = peer
        self.write = transport.write
        self.direct: SocketWrites | None = None
        self._sock = sock
        self._unhandled = ReadAhead(MAX_HELLO_BYTES)
        self._watch = FrameWatch(shared.message_timeouts, self._unhandled, self._frame_timed_out)
        self._session: SessionHandle | None = None
        self._greeted = False
        self._may_push = False
        self._runs = CollectedRuns(shared.pushes)
        self._runs_stay_whole = False  # the last ones received
        self._commands_ahead = False  # the session has commands to finish before the next run
        self._under_way: asyncio.Task[None] | None = None
        self._until = 0.0  # end of the current turn, by the clock of the turns
        self._waits_for_turn = False
        self._meter: CreditMeter | None = None
        self._held = False
        self._held_bytes = 0
        self._paused = False
        self._reads = True
        self._draining = False
        self._hung_up = False
        self._only_pushes = False
        self._unsent = 0  # unsent bytes at the last check of the write timeout
        self._closing = False

    # --- the transport calls ------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Fast path for most reads: a few runs that stay whole, after others that did, are handed over at once."""
        if self._closing:
            return
        if self._runs_stay_whole and len(data) <= MAX_IMMEDIATE_BYTES and self._is_free() and self._unhandled.empty:
            done = self._runs.take(data, 0, self._unhandled.limit, MAX_IMMEDIATE_BYTES)
            if done == len(data):
                self._hand_over()
                return
            data = data[done:]
        self._unhandled.put(data)
        self._continue_within_budget()

    def eof_received(self) -> bool:
        """The client has half-closed the connection. Complete frames are still answered, if the transport can still write. The
        event loop calls this again whenever reading resumes."""
        self._hung_up = True
        return self._transport.can_write_eof() and self._has_pending_answers()

    def pause_writing(self) -> None:
        self._paused = True
        self._pace()
        if self._session is not None:
            self._session.pause_writing()
        else:
            self._unsent = self.unsent()
            self._shared.write_timeouts.begin(self)

    def resume_writing(self) -> None:
        self._paused = False
        self._pace()
        if self._session is not None:
            self._session.resume_writing()
        else:
            self._shared.write_timeouts.end(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._unhandled.clear()
        self._watch.end()
        self._table.left(self)
        self._shared.stats.connections_closed += self._only_pushes
        if self._session is not None:
            self._session.connection_lost()
            self._session = None  # breaks the reference cycle with the session

    # --- the engine calls ---------------------------------------------------------------------------------------------

    def close(self, code: int, text: str) -> None:
        """The codec has written the reason. Further input is read and discarded, so that no reset destroys the last frame."""
        if self._closing:
            return
        self._closing = True
        self._unhandled.clear()
        self._watch.end()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._pace()
        asyncio.get_running_loop().call_later(CLOSE_TIMEOUT, self._transport.abort)

    def pending(self) -> int:
        return self._transport.get_write_buffer_size()

    async def wait_ready(self) -> None:
        pass  # every subscription is answered at once

    def unsent(self) -> int:
        return unsent_bytes(self._transport)

    def hold_reading(self, hold: bool) -> None:
        """Also stops passing on input that was already read, since one read may exceed the session's own limit. The session
        gets that input before more is read."""
        self._held = hold
        self._held_bytes = 0
        if hold:
            self._pace()
        else:
            asyncio.get_running_loop().call_soon(self._continue_within_budget)

    # --- frames, in order ---------------------------------------------------------------------------------------------

    def _continue_within_budget(self) -> None:
        """Continue without a turn, unless much input is unhandled and the budget for work without turns is used up."""
        turns = self._shared.turns
        left = turns.left
        if left <= 0.0 and self._unhandled.size > MAX_IMMEDIATE_BYTES and self._can_continue():
            self._wait_for_turn()
            self._pace()
            return
        began = turns.clock()
        self._continue(began + max(left, FREE_SECONDS))
        turns.worked(turns.clock() - began)

    def _continue(self, until: float) -> None:
        """Take at least one step, and start none after `until`."""
        self._until = until
        clock = self._shared.turns.clock
        try:
            while self._can_continue():
                self._handle_some()
                if clock() >= until:
                    break
            if self._runs and self._under_way is None:
                self._hand_over()
        except MalformedFrame as mistake:
            self._refuse_frame(mistake)
        if not self._closing:
            self._watch.look()
        if self._draining and self._under_way is None:
            self.drain()
        if self._hung_up and not self._has_pending_answers():
            self._transport.close()
        if self._can_continue():
            self._wait_for_turn()
        self._pace()

    def _has_pending_answers(self) -> bool:
        """For a half-closed connection. If only the session has pending answers, starts to finish them."""
        if self._closing:
            return False
        if self._unhandled.size > 0 or self._under_way is not None:
            return True
        rest = None if self._session is None else self._session.finish()
        if rest is not None:
            self._under_way = asyncio.get_running_loop().create_task(self._end_after(rest))
        return rest is not None

    async def _end_after(self, rest: Awaitable[None]) -> None:
        """Does not wait for further deliveries: they have no end."""
        await rest
        self._transport.close()

    def _can_continue(self) -> bool:
        return self._unhandled.size > 0 and self._is_free() and not self._closing

    def _is_free(self) -> bool:
        return self._under_way is None and not self._waits_for_turn and not self._session_is_full()

    def _session_is_full(self) -> bool:
        """Commands may wait for credit, which arrives behind them: it must still be read and passed on."""
        return self._held and (self._meter is None or self._held_bytes > MAX_UNACKED)

    def _wait_for_turn(self) -> None:
        self._waits_for_turn = True
        self._shared.turns.wait(self)

    def take_turn(self) -> float:
        self._waits_for_turn = False
        self._continue(self._shared.turns.clock() + TURN_SECONDS)
        return 0.0

    def _handle_some(self) -> None:
        """Handle a frame, or collect several runs that stay whole. Collected runs are handed over before any other frame."""
        unhandled = self._unhandled
        try:
            if not (stop := unhandled.end()) or (self._may_push and not self._commands_ahead and self._collect()):
                return
            frame = unhandled.data[unhandled.at : stop]
            body = decode(frame)
        except MalformedFrame:
            if self._runs:
                self._hand_over()
                return
            raise
        if self._commands_ahead and isinstance(body, frames.Run):
            self._wait_for_commands()
        elif self._may_push and isinstance(body, frames.Run) and self._runs.add(body):
            unhandled.pass_by(len(frame))
        elif self._runs:
            self._hand_over()
        else:
            unhandled.pass_by(len(frame))
            self._handle(body, frame)

    def _collect(self) -> bool:
        """Collect runs on the fast path. True if there were any."""
        unhandled = self._unhandled
        count = self._runs.take(unhandled.data, unhandled.at, unhandled.limit, MAX_BATCH_BYTES) - unhandled.at
        self._runs_stay_whole = count > 0
        if count:
            unhandled.pass_by(count)
        return count > 0

    def _handle(self, body: frames.Body, frame: bytes) -> None:
        match body:
            case frames.Hello() as hello if not self._greeted:
                self._greet(hello)
            case _ if not self._greeted:
                self._end(error(Reason.NOT_READY, "the first frame is a Hello"))
            case frames.Hello():
                raise MalformedFrame("Hello is only the first frame", 1002)
            case frames.Run() as run:
                self._push(run)
            case frames.Ping(ref) if self._session is None:
                self.write(pong(ref))
            case frames.Credit(more) if self._session is not None and self._meter is not None:
                self._meter.grant(more)
                self._session.credit_granted()
            case _ if self._session is not None:
                self._held_bytes += len(frame)
                self._session.receive(frame)
                self._commands_ahead, self._runs_stay_whole = self._may_push, False
            case frames.Subscribe(ref) | frames.History(ref):
                self.write(encode(frames.Refused(ref, 0, Reason.FORBIDDEN, "a publishing key is for pushes only")))
            case body:
                raise MalformedFrame(f"{type(body).__name__} is not for a server, or not now", 1002)

    def _refuse_frame(self, mistake: MalformedFrame) -> None:
        if self._session is not None:
            self._session.reject_frame(mistake.reason, mistake.code, mistake.refusal or Refusal.BAD_FRAME)
        else:
            self._shared.stats.refusals[mistake.refusal or Refusal.BAD_FRAME] += 1
            self._end(encode_error(mistake))

    def _frame_timed_out(self) -> None:
        """Not a timeout of the client if reading is paused or earlier frames are not handled yet."""
        if not self._reads or self._unhandled.size:
            self._watch.look()
        elif self._session is not None:
            self._session.message_overdue()
        else:
            self._shared.stats.refusals[Refusal.MESSAGE_TIMEOUT] += 1
            self._end(error(Reason.OVERFLOW, UNFINISHED_MESSAGE.text, reconnect=True))

    def _end(self, last: bytes) -> None:
        """For a connection without a session."""
        if not self._closing:
            self.write(last)
            self.close(1000, "")

    def _pace(self) -> None:
        waits = self._session_is_full() or self._paused or self._waits_for_turn
        reads = self._closing or not (waits or self._unhandled.size > MAX_UNACKED)
        if reads is not self._reads and not self._transport.is_closing():
            self._reads = reads
            if reads:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # --- Hello --------------------------------------------------------------------------------------------------------

    def _greet(self, hello: frames.Hello) -> None:
        self._greeted = True
        shared = self._shared
        shared.timeouts.end(self)
        if hello.version != frames.VERSION:
            self._end(error(Reason.UNKNOWN_VERSION, f"version {frames.VERSION} is spoken here"))
            return
        token = hello.token.decode("utf-8", "replace")
        kind = shared.clients.classify(token)
        self._may_push = kind.may_push
        self._unhandled.limit = shared.max_frame if self._may_push else shared.options.max_command
        if hello.credit and kind is not ClientKind.PUBLISHER:
            self._meter = CreditMeter(hello.credit)
        codec = BrokyCodec(shared.welcome(self._unhandled.limit), shared.options.signed, self._meter)
        if kind is ClientKind.PUBLISHER:
            self._only_pushes = True
            shared.stats.connections_accepted += 1
            self.write(codec.welcome("", None))
            return
        if self._sock is not None and self._meter is None:  # with credit, frames are written one by one
            self.direct = SocketWrites(self._sock, self._transport)
        self._session = shared.open_session(shared.clients.request(token, self._peer), self, codec)
        self._under_way = asyncio.get_running_loop().create_task(self._opened(self._session))

    async def _opened(self, session: SessionHandle) -> None:
        """No pushes before authentication."""
        await session.wait_opened()
        self._finished()

    def time_out(self) -> None:
        if self._greeted:
            self._watch_progress()
            return
        self._shared.stats.refusals[Refusal.HEAD_TIMEOUT] += 1
        self._end(error(Reason.NOT_READY, "no Hello came"))

    def _watch_progress(self) -> None:
        """Write timeout. Abort without an error frame if the peer has read nothing since the last check."""
        unsent = self.unsent()
        if unsent != self._unsent:
            self._unsent = unsent
            self._shared.write_timeouts.begin(self)
        else:
            self._shared.stats.refusals[Refusal.WRITE_TIMEOUT] += 1
            self._transport.abort()

    def drain(self) -> None:
        """The server is shutting down. The engine notifies sessions."""
        self._draining = True
        if self._session is None and self._under_way is None:
            self._end(error(Reason.DRAINING, "the server restarts", reconnect=True))

    # --- pushes -------------------------------------------------------------------------------------------------------

    def _push(self, run: frames.Run) -> None:
        """Register it together with the runs directly behind it, until the end of the turn."""
        pusher, clock = self._shared.pushes, self._shared.turns.clock
        pushes: list[Push] = []
        refusals: list[bytes] = []
        size = 0
        while True:
            if isinstance(push := pusher.build_push(run, self._may_push), bytes):
                refusals.append(push)
            else:
                pushes.append((run, push))
                size += len(push)
            if size >= pusher.limits.max_batch or clock() >= self._until:
                break
            try:
                frame = self._unhandled.frame()
                following = decode(frame) if frame else None
            except MalformedFrame:
                break  # reported when it is handled itself
            if not isinstance(following, frames.Run) or pusher.publisher.is_ephemeral(decode_key(following.key)):
                break
            self._unhandled.pass_by(len(frame))
            run = following
        if refusals:
            self.write(b"".join(refusals))
        if not pushes:
            return
        if not pusher.instant:
            self._await(pusher.register(pushes))
        elif answer := completed(pusher.register(pushes)):
            self.write(answer)

    def _hand_over(self) -> None:
        """Hand over the collected runs and write the answer, if there is one."""
        answer = self._runs.hand_over()
        if not isinstance(answer, bytes):
            self._await(answer)
        elif answer:
            self.write(answer)

    def _wait_for_commands(self) -> None:
        """Handle the next run after the pending commands."""
        self._commands_ahead = False
        if self._session is not None and (settled := self._session.wait_idle()) is not None:
            self._under_way = asyncio.get_running_loop().create_task(self._continue_after(settled))

    async def _continue_after(self, settled: Awaitable[None]) -> None:
        await settled
        self._finished()

    def _await(self, work: Coroutine[Any, Any, bytes]) -> None:
        """Write the answer when the work is done; no frames are handled until then."""
        self._under_way = asyncio.get_running_loop().create_task(self._answer(work))

    async def _answer(self, work: Coroutine[Any, Any, bytes]) -> None:
        answer = await work
        if answer and not self._closing:
            self.write(answer)
        self._finished()

    def _finished(self) -> None:
        self._under_way = None
        self._continue_within_budget()

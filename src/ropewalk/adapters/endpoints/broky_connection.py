"""One connection over TCP: pushes go to `broky_pushes`, everything else is its session's. Frames are handled in order, but a
command that waits for the store or for credit holds up no pushes."""

import asyncio
from collections.abc import Awaitable, Coroutine
from socket import socket
from typing import Any, Protocol

from msgspec.structs import replace

from ropewalk.adapters.endpoints.broky_clients import ClientKind, RingNodes
from ropewalk.adapters.endpoints.broky_pushes import CollectedRuns, Push
from ropewalk.adapters.endpoints.broky_shared import MAX_UNACKED, BrokyShared
from ropewalk.adapters.endpoints.frame_watch import FrameWatch
from ropewalk.adapters.endpoints.routes import completed
from ropewalk.adapters.endpoints.socket_writes import SocketWrites
from ropewalk.adapters.endpoints.turns import A_TURN, LITTLE
from ropewalk.adapters.endpoints.unsent import unsent_bytes
from ropewalk.core.node_proofs import DialledNode
from ropewalk.model.closing import UNFINISHED_MESSAGE
from ropewalk.model.errors import MalformedFrame, NotProven
from ropewalk.model.refusals import Refusal
from ropewalk.ports import SessionHandle
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.codec import BrokyCodec, error, error_of, pong
from ropewalk.protocol.broky.credit import CreditMeter
from ropewalk.protocol.broky.frames import Reason
from ropewalk.protocol.broky.read_ahead import ReadAhead
from ropewalk.protocol.broky.runs import decode
from ropewalk.protocol.broky.splitter import MAX_FRAME
from ropewalk.protocol.broky.tables import encode
from ropewalk.protocol.proxies import Peer
from ropewalk.protocol.stream_keys import name_of

HELLO_SIZE = 16 * 1024
"""Bytes of a frame of somebody whom we do not know yet."""

CLOSE_TIMEOUT = 1.0
ENOUGH = 32 * 1024
"""Bytes of runs on the fast path after which the time is looked at."""

FEW_BYTES = 4096
"""Bytes of a connection that do not wait for its turn, however much others have sent."""


class ConnectionTable(Protocol):
    """All connections, as one of them sees them."""

    def counted(self, connection: "BrokyConnection") -> bool:
        """It is a client. False where there is no place for one more."""

    def left(self, connection: "BrokyConnection") -> None:
        """It has ended, or is not a client's."""


class BrokyConnection(asyncio.Protocol):
    """A `Connection`, if it has a session. `write` is the transport's own method. `sock`: that of the transport, if there is no
    TLS in between."""

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
        self._unhandled = ReadAhead(HELLO_SIZE)
        self._watch = FrameWatch(shared.message_timeouts, self._unhandled, self._frame_late)
        self._session: SessionHandle | None = None
        self._greeted = False
        self._proving: DialledNode | None = None  # a node of the ring, until it has proved the key
        self._may_push = False
        self._runs = CollectedRuns(shared.pushes)
        self._runs_stay_whole = False  # those that came last
        self._commands_ahead = False  # of the next run, in the session
        self._under_way: asyncio.Task[None] | None = None
        self._until = 0.0  # by the clock of the turns, for how long it may work on in this one
        self._waits_for_turn = False
        self._meter: CreditMeter | None = None
        self._held = False
        self._held_bytes = 0
        self._paused = False
        self._reads = True
        self._draining = False
        self._hung_up = False
        self._only_pushes = False
        self._unsent = 0  # when it was last seen not to take its answers
        self._closing = False

    # --- the transport calls ------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """A few runs that stay whole, behind others that did, are handed over at once: this is what most reads bring."""
        if self._closing:
            return
        if self._runs_stay_whole and len(data) <= FEW_BYTES and self._is_free() and self._unhandled.empty:
            done = self._runs.take(data, 0, self._unhandled.limit, FEW_BYTES)
            if done == len(data):
                self._hand_over()
                return
            data = data[done:]
        self._unhandled.put(data)
        self._go_on_if_time_is_left()

    def eof_received(self) -> bool:
        """The client will say no more. What came whole is answered, where the transport can still carry that. It is told again
        whenever reading goes on."""
        self._hung_up = True
        return self._transport.can_write_eof() and self._owes_answers()

    def pause_writing(self) -> None:
        self._paused = True
        self._pace()
        if self._session is not None:
            self._session.writing_paused()
        else:
            self._unsent = self.unsent()
            self._shared.write_timeouts.begin(self)

    def resume_writing(self) -> None:
        self._paused = False
        self._pace()
        if self._session is not None:
            self._session.writing_resumed()
        else:
            self._shared.write_timeouts.end(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._unhandled.clear()
        self._watch.end()
        self._table.left(self)
        self._shared.stats.connections_closed += self._only_pushes
        if self._session is not None:
            self._session.lost()
            self._session = None  # it knows this connection: nothing but the garbage collector would free the two

    # --- the engine calls ---------------------------------------------------------------------------------------------

    def close(self, code: int, text: str) -> None:
        """The codec has said why. What still comes is read and thrown away, so that no reset takes our last frame with it."""
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

    async def ready(self) -> None:
        pass  # every subscription is answered as it comes

    def unsent(self) -> int:
        return unsent_bytes(self._transport)

    def hold_reading(self, hold: bool) -> None:
        """Nor is more handed on of what was read: the session's own bound is below what one read may bring. It gets that
        before more is read."""
        self._held = hold
        self._held_bytes = 0
        if hold:
            self._pace()
        else:
            asyncio.get_running_loop().call_soon(self._go_on_if_time_is_left)

    # --- frames, in order ---------------------------------------------------------------------------------------------

    def _go_on_if_time_is_left(self) -> None:
        """Without a turn, unless much waits here and others have worked without theirs."""
        turns = self._shared.turns
        left = turns.left
        if left <= 0.0 and self._unhandled.size > FEW_BYTES and self._may_go_on():
            self._wait_for_turn()
            self._pace()
            return
        began = turns.clock()
        self._go_on(began + max(left, LITTLE))
        turns.worked(turns.clock() - began)

    def _go_on(self, until: float) -> None:
        """At least a step, and no further one after that time."""
        self._until = until
        clock = self._shared.turns.clock
        try:
            while self._may_go_on():
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
        if self._hung_up and not self._owes_answers():
            self._transport.close()
        if self._may_go_on():
            self._wait_for_turn()
        self._pace()

    def _owes_answers(self) -> bool:
        """To a client that has hung up. When only its session has something left, that is under way from now on."""
        if self._closing:
            return False
        if self._unhandled.size > 0 or self._under_way is not None:
            return True
        rest = None if self._session is None else self._session.finish()
        if rest is not None:
            self._under_way = asyncio.get_running_loop().create_task(self._end_after(rest))
        return rest is not None

    async def _end_after(self, rest: Awaitable[None]) -> None:
        """Deliveries that still come are not waited for: they would have no end."""
        await rest
        self._transport.close()

    def _may_go_on(self) -> bool:
        return self._unhandled.size > 0 and self._is_free() and not self._closing

    def _is_free(self) -> bool:
        return self._under_way is None and not self._waits_for_turn and not self._session_is_full()

    def _session_is_full(self) -> bool:
        """Commands may wait for credit, which comes behind them: it has to be read, and handed on."""
        return self._held and (self._meter is None or self._held_bytes > MAX_UNACKED)

    def _wait_for_turn(self) -> None:
        self._waits_for_turn = True
        self._shared.turns.wait(self)

    def take_turn(self) -> float:
        self._waits_for_turn = False
        self._go_on(self._shared.turns.clock() + A_TURN)
        return 0.0

    def _handle_some(self) -> None:
        """A frame, or several runs that stay whole. These are collected, and handed over before anything else is handled."""
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
        """Whether there were runs on the fast path."""
        unhandled = self._unhandled
        count = self._runs.take(unhandled.data, unhandled.at, unhandled.limit, ENOUGH) - unhandled.at
        self._runs_stay_whole = count > 0
        if count:
            unhandled.pass_by(count)
        return count > 0

    def _handle(self, body: frames.Body, frame: bytes) -> None:
        match body:
            case frames.Hello() as hello if not self._greeted and self._proving is None:
                self._greet(hello)
            case frames.Peer(said) if not self._greeted and self._shared.clients.nodes is not None:
                self._greet_node(said, self._shared.clients.nodes)
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
                self._session.granted()
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
            self._session.malformed(mistake.reason, mistake.code, mistake.refusal or Refusal.BAD_FRAME)
        else:
            self._shared.stats.refusals[mistake.refusal or Refusal.BAD_FRAME] += 1
            self._end(error_of(mistake))

    def _frame_late(self) -> None:
        """Not the client's fault where we do not read on, or have not handled what came before."""
        if not self._reads or self._unhandled.size:
            self._watch.look()
        elif self._session is not None:
            self._session.unfinished()
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
        if not self._table.counted(self):
            self._end(error(Reason.OVERFLOW, "too many connections", reconnect=True))
            return
        kind = shared.clients.kind_of(token)
        self._may_push = kind.may_push
        self._unhandled.limit = shared.max_frame if self._may_push else shared.max_command
        if hello.credit and kind is not ClientKind.PUBLISHER:
            self._meter = CreditMeter(hello.credit)
        codec = BrokyCodec(shared.welcome(self._unhandled.limit), shared.signed, self._meter)
        if kind is ClientKind.PUBLISHER:
            self._only_pushes = True
            shared.stats.connections_accepted += 1
            self.write(codec.welcome("", None))
            return
        if self._sock is not None and self._meter is None:  # with credit, frames are written one by one
            self.direct = SocketWrites(self._sock, self._transport)
        self._session = shared.open_session(shared.clients.request(token, self._peer), self, codec)
        self._under_way = asyncio.get_running_loop().create_task(self._opened(self._session))

    def _greet_node(self, said: bytes, nodes: RingNodes) -> None:
        """First its challenge, then its proof; it sends nothing more before it is welcomed. The timeout for a Hello goes on."""
        try:
            if self._proving is None:
                self._proving = nodes.greet()
                self.write(encode(frames.Peer(self._proving.respond(said))))
            else:
                self._proving.verify(said)
                self._become_a_link(nodes)
        except NotProven as mistake:
            self._shared.stats.refusals[Refusal.BAD_KEY] += 1
            self._end(error(Reason.UNAUTHORIZED, str(mistake)))

    def _become_a_link(self, nodes: RingNodes) -> None:
        self._greeted = self._closing = True
        self._watch.end()
        self._table.left(self)
        self.write(encode(replace(self._shared.welcome(MAX_FRAME), node=nodes.name)))
        nodes.take_over(self._transport)

    async def _opened(self, session: SessionHandle) -> None:
        """Nobody pushes before they are known."""
        await session.opened()
        self._finished()

    def time_out(self) -> None:
        if self._greeted:
            self._watch_progress()
            return
        self._shared.stats.refusals[Refusal.HEAD_TIMEOUT] += 1
        self._end(error(Reason.NOT_READY, "no Hello came"))

    def _watch_progress(self) -> None:
        """Nobody took all that waits. Where nobody took anything, nobody would read an error either."""
        unsent = self.unsent()
        if unsent != self._unsent:
            self._unsent = unsent
            self._shared.write_timeouts.begin(self)
        else:
            self._shared.stats.refusals[Refusal.WRITE_TIMEOUT] += 1
            self._transport.abort()

    def drain(self) -> None:
        """The server ends. A session is told by the engine."""
        self._draining = True
        if self._session is None and self._under_way is None:
            self._end(error(Reason.DRAINING, "the server restarts", reconnect=True))

    # --- pushes -------------------------------------------------------------------------------------------------------

    def _push(self, run: frames.Run) -> None:
        """With all runs that came right behind it and are registered too, as far as the time reaches."""
        pusher, clock = self._shared.pushes, self._shared.turns.clock
        pushes: list[Push] = []
        refusals: list[bytes] = []
        size = 0
        while True:
            if isinstance(push := pusher.push_of(run, self._may_push), bytes):
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
                break  # it is told when its turn comes
            if not isinstance(following, frames.Run) or pusher.publisher.is_ephemeral(name_of(following.key)):
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
        """What was collected; nothing, if it was to nobody."""
        answer = self._runs.hand_over()
        if not isinstance(answer, bytes):
            self._await(answer)
        elif answer:
            self.write(answer)

    def _wait_for_commands(self) -> None:
        """The next run is handled after them."""
        self._commands_ahead = False
        if self._session is not None and (settled := self._session.settled()) is not None:
            self._under_way = asyncio.get_running_loop().create_task(self._go_on_after(settled))

    async def _go_on_after(self, settled: Awaitable[None]) -> None:
        await settled
        self._finished()

    def _await(self, work: Coroutine[Any, Any, bytes]) -> None:
        """Send what it answers later; until then nothing more is handled."""
        self._under_way = asyncio.get_running_loop().create_task(self._answer(work))

    async def _answer(self, work: Coroutine[Any, Any, bytes]) -> None:
        answer = await work
        if answer and not self._closing:
            self.write(answer)
        self._finished()

    def _finished(self) -> None:
        self._under_way = None
        self._go_on_if_time_is_left()

"""One HTTP/1.1 connection: requests are parsed, the router finds their handlers, and responses go out in order.

Every size is bounded. A peer that sends costly framing, stops in the middle, reads nothing or stays idle is cut off.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, cast

from ropewalk.adapters.endpoints.head_timeouts import HeadTimeouts
from ropewalk.adapters.endpoints.http_guard import KEYED
from ropewalk.adapters.endpoints.http_requests import HttpRequest, MalformedRequest, RequestHeaders, RequestParser
from ropewalk.adapters.endpoints.http_responses import HttpResponse, encode_response, refusal
from ropewalk.adapters.endpoints.routes import HttpAnswer, HttpRouter, QuickHandler, completed
from ropewalk.adapters.endpoints.socket_writes import WriteWatch
from ropewalk.adapters.endpoints.turns import LoopTurns
from ropewalk.model.errors import Unavailable
from ropewalk.model.refusals import Refusal
from ropewalk.protocol.proxies import FORWARDING_HEADERS, Peer, TrustedProxies, joined_headers

logger = logging.getLogger("ropewalk.http")

MAX_HEAD_BYTES = 16 * 1024

SLICE_BYTES = 8 * 1024
"""Bytes parsed in one turn of the event loop: about a millisecond of work, also with chunks of one byte. A body of known length
has no framing and is parsed as it comes."""

CHUNKS_A_SECOND = 100_000
"""Chunks parsed a second, of all connections together: about a tenth of a processor."""

MAX_FRAMING_BYTES = 64 * 1024
"""Chunk sizes, extensions and trailers that any body may have. Beyond it they must not be larger than the body."""

BODY_HIGH_WATER = 256 * 1024
"""Bytes of a body that wait for the handler. Above it nothing more is parsed."""

HOLD_SECONDS = 1.0
"""How long the body of a quick request is waited for, before a task waits for it."""

LINGER_SECONDS = 1.0
"""How long the rest of a body that no handler reads is taken, so that its sender gets the response and not a reset."""

MAX_LINGER_BYTES = 32 << 20
"""How much of it: more than the largest body that any endpoint accepts by default."""


class HttpContext(NamedTuple):
    """Shared by the HTTP connections of a port.

    Args:
        write_timeout: seconds without progress after which a peer that does not read is dropped.
    """

    router: HttpRouter
    connections: "set[HttpConnection]"
    head_timeouts: HeadTimeouts
    turns: LoopTurns
    refusals: Counter[str]
    write_timeout: float
    proxies: TrustedProxies


class _Repeat(NamedTuple):
    """The head of a quick request as it came, and what it was parsed to. Publishers send the same head again and again."""

    head: bytes
    size: int
    request: HttpRequest
    quick: QuickHandler


class HttpConnection(asyncio.Protocol):
    """Implements `Exchange`. Requests are answered one after another; a quick one without a task, if its handler can.

    Bytes that come while they cannot be parsed are held, and reading pauses until they are.
    """

    __slots__ = (
        "_body_timer",
        "_context",
        "_current",
        "_head_bytes",
        "_idle_at",
        "_idle_timeout",
        "_idle_timer",
        "_in_turn",
        "_linger_end",
        "_lingering",
        "_logs",
        "_loop",
        "_parser",
        "_peer",
        "_peer_ended",
        "_quick",
        "_repeat",
        "_stopping",
        "_streaming",
        "_task",
        "_unparsed",
        "_wire_bytes",
        "_writing",
        "transport",
        "when_lost",
    )

    def __init__(self, context: HttpContext, peer: Peer, idle_timeout: float) -> None:
        self._context = context
        self._peer = peer
        self._idle_timeout = idle_timeout
        self._loop = asyncio.get_running_loop()
        self._logs = logger.isEnabledFor(logging.DEBUG)
        self.transport: asyncio.Transport | None = None
        self.when_lost: list[Callable[[], None]] = []
        self._parser = RequestParser(self)
        self._repeat: _Repeat | None = None
        self._unparsed = b""
        self._in_turn = False  # waits for its turn to parse
        self._head_bytes = 0
        self._wire_bytes = 0  # of the body that is arriving, with its framing
        self._current: HttpRequest | None = None
        self._quick: QuickHandler | None = None  # of the current request, while its body is incomplete
        self._task: asyncio.Task[None] | None = None
        self._streaming = False
        self._lingering = False
        self._linger_end = 0
        self._body_timer: asyncio.TimerHandle | None = None  # of a quick or lingering request
        self._idle_at = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._writing: WriteWatch | None = None  # while the peer takes less than is written
        self._peer_ended = False
        self._stopping = False

    # --- called by the event loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._context.connections.add(self)
        self._context.head_timeouts.begin(self)  # of the first head: the input may be only empty lines so far

    def connection_lost(self, error: Exception | None) -> None:
        if self.transport is None:  # it was handed over
            return
        if self._current is not None:
            self._current.body.fail("the connection was lost")
        if self._quick is not None:
            self._quick.cut_off()
        self._forget()
        callbacks = list(self.when_lost)
        self.when_lost.clear()
        for callback in callbacks:
            callback()

    def data_received(self, data: bytes) -> None:
        if self._unparsed or not self._may_parse():
            self._unparsed += data
            self._pause_reading()
        else:
            self._parse(data)

    def eof_received(self) -> bool:
        """True to stay open until every complete request is answered. TLS ends both sides at once."""
        self._peer_ended = True
        if self._current is not None:
            self._current.body.fail("the connection was lost")
        assert self.transport is not None
        secure = self.transport.get_extra_info("sslcontext") is not None
        return not secure and not self._streaming and not self._is_finished()

    def pause_writing(self) -> None:
        if self.transport is not None:
            self._writing = WriteWatch(self.transport, self._context.write_timeout, self._abort)

    def resume_writing(self) -> None:
        self._end_watch()
        self._continue()

    # --- parsing ------------------------------------------------------------------------------------------------------

    def _may_parse(self) -> bool:
        """Only the body of the request that is being answered; the next request when that is answered."""
        if self._in_turn or self._parser.ended or self._parser.queue:
            return False
        current = self._current
        return current is None or not (current.body.complete or current.body.buffered > BODY_HIGH_WATER)

    def _parse(self, data: bytes) -> None:
        """Work that exceeds one turn of the event loop waits for the next one."""
        rest = data
        if self._repeat is not None and self._parser.is_between_requests:
            rest = self._answer_repeats(self._repeat, data)
        if rest is data:
            end = max(SLICE_BYTES, self._known_length())
            self._unparsed = data[end:]
            self._feed(data[:end] if self._unparsed else data)
            self._answer()
        else:
            self._unparsed = rest
        if self._unparsed:
            self._pause_reading()
            if self._may_parse():
                self._in_turn = True
                self._context.turns.wait(self)

    def _answer_repeats(self, repeat: _Repeat, data: bytes) -> bytes:
        """Answer the requests with the same head at the beginning of `data`. Returns the rest."""
        head, size, request, quick = repeat
        done = 0
        while data.startswith(head, done) and done + size <= len(data) and done < SLICE_BYTES and self._may_begin():
            if (
                self._stopping
                or not quick.takes(request)
                or (answer := quick.answer(request, data[done + len(head) : done + size])) is None
            ):
                break
            done += size
            self._current = request
            if self._logs:
                request.begun = self._loop.time()
            self._answer_quickly(quick, request, answer)
        return data[done:] if done else data

    def _note_repeat(self, data: bytes) -> None:
        """`data` is one whole request and nothing else."""
        request = self._parser.newest
        if request is None or request.length is None:
            return
        quick = self._context.router.quick.get(request.target)
        if quick is not None and quick.takes(request):
            self._repeat = _Repeat(data[: len(data) - request.length], len(data), request, quick)

    def _known_length(self) -> int:
        """How many bytes from here on are body without framing."""
        newest = self._parser.newest
        if newest is None or newest.body.complete or newest.length is None:
            return 0
        return newest.length - newest.body.received

    def take_turn(self) -> float:
        """Parse the next slice. Returns how long others wait after it."""
        self._in_turn = False
        before = self._parser.chunks
        self._continue()
        return (self._parser.chunks - before) / CHUNKS_A_SECOND

    def _continue(self) -> None:
        """Answer and parse what had to wait, as far as it may."""
        self._answer()
        if self._unparsed and self._may_parse() and self.transport is not None:
            data, self._unparsed = self._unparsed, b""
            self._parse(data)
        if not self._unparsed and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
            self._close_if_finished()

    def _pause_reading(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def _feed(self, data: bytes) -> None:
        parser = self._parser
        was_in_head, before, was_between = parser.in_head, parser.newest, parser.is_between_requests
        self._unparsed = parser.feed(data) + self._unparsed
        self._bound_head(len(data), was_in_head, parser.newest is not before)
        if parser.newest is not before:
            self._wire_bytes = 0
            if was_between and len(parser.queue) == 1 and parser.is_between_requests:
                self._note_repeat(data)
        else:
            self._wire_bytes += len(data)
            self._bound_framing()
        if self._current is not None and self._current.body.complete:
            self._body_came(self._current)
        elif self._lingering and self._current is not None and self._current.body.received > self._linger_end:
            self._finish(self._current)

    def _bound_head(self, size: int, was_in_head: bool, completed: bool) -> None:
        """`completed`: the bytes that were parsed completed a head. Only later bytes count for the next one."""
        timeouts, parser = self._context.head_timeouts, self._parser
        if completed:
            timeouts.end(self)
            self._head_bytes = 0
        if not parser.in_head:
            return
        if completed or not (was_in_head or parser.newest is None):
            timeouts.begin(self)
        if not completed:
            self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            parser.refuse(431, "the head of the request is too long")

    def _bound_framing(self) -> None:
        newest = self._parser.newest
        if newest is None or newest.body.complete or newest.length is not None:
            return
        if self._wire_bytes > 2 * newest.body.received + MAX_FRAMING_BYTES:
            self._abort(Refusal.CHUNKS)

    def time_out(self) -> None:
        """The rest of a head did not come. It may wait while a request before it is answered."""
        if self._current is not None or self._parser.queue:
            self._context.head_timeouts.begin(self)
        else:
            self._abort(Refusal.HEAD_TIMEOUT)

    # --- answering ----------------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        queue = self._parser.queue
        while queue and self._may_begin():
            match queue.popleft():
                case MalformedRequest() as malformed:
                    self._reject(malformed)
                case request:
                    self._begin(request)

    def _reject(self, malformed: MalformedRequest) -> None:
        if self.transport is not None:
            response = refusal(malformed.status, malformed.reason, close=True)
            if malformed.is_head:
                response.body = b""
            self.transport.write(encode_response(None, response))
            self.transport.close()

    def _may_begin(self) -> bool:
        return self._current is None and self._writing is None and self.transport is not None

    def _begin(self, request: HttpRequest) -> None:
        self._current = request
        if self._logs:
            request.begun = self._loop.time()
        quick = self._context.router.quick.get(request.target)
        if quick is None or not quick.takes(request):
            self._start(request)
        elif request.body.complete:
            self._read_quickly(quick, request)
        else:
            self._hold(quick, request)

    def _hold(self, quick: QuickHandler, request: HttpRequest) -> None:
        """Wait for the rest of a small body without a task."""
        try:
            KEYED.take(request.length or 0)
        except Unavailable:
            self._start(request)
            return
        self._quick = quick
        self._body_timer = self._loop.call_later(HOLD_SECONDS, self._end_hold, request)

    def _end_hold(self, request: HttpRequest) -> None:
        self._release_hold(request)
        self._start(request)

    def _release_hold(self, request: HttpRequest) -> None:
        self._quick = None
        KEYED.give_back(request.length or 0)
        self._end_body_timer()

    def _body_came(self, request: HttpRequest) -> None:
        """The body of the current request is complete."""
        if self._quick is not None:
            quick = self._quick
            self._release_hold(request)
            self._read_quickly(quick, request)
        elif self._lingering:
            self._finish(request)

    def _read_quickly(self, quick: QuickHandler, request: HttpRequest) -> None:
        answer = quick.answer(request, request.body.peek())
        if answer is None:
            self._start(request)
        else:
            self._answer_quickly(quick, request, answer)

    def _answer_quickly(self, quick: QuickHandler, request: HttpRequest, answer: Coroutine[Any, Any, HttpResponse]) -> None:
        if quick.instant:
            self._respond(request, completed(answer))
        else:
            self._task = self._loop.create_task(self._run(request, answer))

    def _start(self, request: HttpRequest) -> None:
        self._task = self._loop.create_task(self._run(request, self._context.router.handler(request)(request)))

    async def _run(self, request: HttpRequest, handling: Awaitable[HttpAnswer]) -> None:
        try:
            answer = await handling
        except Exception as error:
            answer = self._failed(request, error)
        self._task = None
        self._streaming = False
        if self.transport is None:
            return
        if isinstance(answer, HttpResponse):
            self._respond(request, answer)
        elif answer.ended:
            self._responded(request, answer.status, answer.close)
        else:
            self.transport.close()
        self._continue()

    def _failed(self, request: HttpRequest, error: Exception) -> HttpResponse:
        if self.transport is not None or not isinstance(error, ConnectionError):
            logger.error("request failed", exc_info=error, extra={"method": request.method, "path": request.path})
        return refusal(500, "the server failed", close=True)

    def _respond(self, request: HttpRequest, response: HttpResponse) -> None:
        assert self.transport is not None
        close = response.close or not request.keep_alive or self._stopping or self._is_body_unusable(request)
        self.transport.write(encode_response(request, response, close))
        self._responded(request, response.status, close)

    @staticmethod
    def _is_body_unusable(request: HttpRequest) -> bool:
        """The body was malformed, or its sender waits for a `100 Continue` that never came."""
        return request.body.failed or (request.continue_expected and not request.body.received)

    def _responded(self, request: HttpRequest, status: int, close: bool) -> None:
        if request.begun:
            self._log(request, status)
        request.keep_alive = not close
        if request.body.complete or self._is_body_unusable(request):
            self._finish(request)
        else:
            self._lingering = True
            self._linger_end = request.body.received + MAX_LINGER_BYTES
            request.body.discard()
            self._body_timer = self._loop.call_later(LINGER_SECONDS, self._finish, request)

    def _finish(self, request: HttpRequest) -> None:
        """A request is answered, and its body is behind it."""
        assert self.transport is not None
        self._end_body_timer()
        self._current = None
        self._lingering = False
        if not request.keep_alive or not request.body.complete:
            self._parser.ended = True
            self._parser.queue.clear()
            self.transport.close()
        else:
            self._idle_at = self._loop.time() + self._idle_timeout
            if self._idle_timer is None:
                self._idle_timer = self._loop.call_at(self._idle_at, self._check_idle)

    def _log(self, request: HttpRequest, status: int) -> None:
        seconds = round(self._loop.time() - request.begun, 6)
        remote = self.client(request.headers)[0]
        # Without the query, because it may contain tokens.
        extra = {"method": request.method, "path": request.path, "status": status, "remote": remote, "seconds": seconds}
        logger.debug("request", extra=extra)

    # --- called by handlers -------------------------------------------------------------------------------------------

    def client(self, headers: RequestHeaders) -> tuple[str, str]:
        secure = self.transport is not None and self.transport.get_extra_info("sslcontext") is not None
        forwarded = joined_headers(headers.getall, FORWARDING_HEADERS) if self._context.proxies else {}
        return self._context.proxies.client(self._peer, "https" if secure else "http", forwarded)

    @property
    def peer(self) -> Peer:
        return self._peer

    def body_awaited(self) -> None:
        request = self._current
        if request is not None and request.continue_expected and self.transport is not None:
            request.continue_expected = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def body_taken(self) -> None:
        if self._unparsed:
            self._loop.call_soon(self._continue)

    def stream_begun(self) -> None:
        self._streaming = True

    async def drain(self) -> None:
        if self._writing is not None:
            await self._writing.drained()
        if self.transport is None:
            raise ConnectionResetError("the connection was lost")

    def detach(self) -> tuple[asyncio.Transport, bytes]:
        """Hand the connection over to another protocol, with the input behind the current request."""
        assert self.transport is not None
        transport, rest = self.transport, self._unparsed
        self._forget()
        transport.resume_reading()
        return transport, rest

    # --- the end ------------------------------------------------------------------------------------------------------

    def stop(self) -> asyncio.Task[None] | None:
        """Close the connection behind the response that is under way, whose task is returned, or now."""
        self._stopping = True
        if self._task is None and self.transport is not None:
            self.transport.close()
        return self._task

    def _forget(self) -> None:
        self.transport = None
        self._context.connections.discard(self)
        self._context.head_timeouts.end(self)
        if self._quick is not None and self._current is not None:
            self._release_hold(self._current)
        for timer in (self._body_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._end_watch()
        self._unparsed = b""
        self._current = self._repeat = None
        self._parser.close()

    def _abort(self, why: Refusal) -> None:
        self._context.refusals[why] += 1
        logger.debug("connection closed", extra={"reason": why.value})
        if self.transport is not None:
            self.transport.abort()

    def _end_watch(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.end()

    def _is_finished(self) -> bool:
        """Everything that has come is answered."""
        return self._current is None and not self._parser.queue and not self._unparsed

    def _close_if_finished(self) -> None:
        if self._peer_ended and self._is_finished() and self.transport is not None:
            self.transport.close()

    def _end_body_timer(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _check_idle(self) -> None:
        self._idle_timer = None
        if self.transport is None or not self._is_finished():
            return
        if self._loop.time() < self._idle_at:
            self._idle_timer = self._loop.call_at(self._idle_at, self._check_idle)
        else:
            self._context.refusals[Refusal.IDLE] += 1
            self.transport.close()

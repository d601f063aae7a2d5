"""One aiohttp connection, with bounds on a peer that sends costly framing, reads no responses, or leaves it idle. A peer that
only ends its own side gets what it asked for.

Bodies are passed on as they were sent; `http_guard` inflates them where they are needed.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from typing import Any

from aiohttp import HttpVersion10, HttpVersion11, StreamReader, web
from aiohttp.http import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD

from ropewalk.adapters.endpoints.http_guard import refusal
from ropewalk.adapters.endpoints.proxied_connection import ProxiedConnection
from ropewalk.adapters.endpoints.request_log import RequestLog, request_logger
from ropewalk.adapters.endpoints.turns import LoopTurns
from ropewalk.adapters.endpoints.unsent import unsent_bytes
from ropewalk.model.refusals import Refusal
from ropewalk.protocol.proxies import Peer, TrustedProxies

logger = logging.getLogger("ropewalk.server")

# --- what comes in: a chunk of one byte costs as much to parse as one of kilobytes -----------------------------------

LINES_AT_ONCE = 256
"""What holds more lines waits for its turn. With chunks of 1 KiB these are 128 KiB."""

FEW_BYTES = 1024
"""What is so short is parsed without counting its lines."""

PIECE_BYTES = 4 * 1024
"""What is parsed in one turn: with chunks of one byte half a millisecond's work, and as much again to read the body."""

LINES_A_SECOND = 200_000
"""That are parsed in turns, of all connections together: about a tenth of a processor. A chunk has two lines."""

FRAMING_BYTES = 64 * 1024
"""Chunk sizes, chunk extensions and trailers that any body may have; beyond it they must not be larger than the body."""


class ChunkPacing(ProxiedConnection):
    """Limits the HTTP framing that a connection makes the server parse.

    Data with many lines is parsed in small pieces. The connections that send it take turns, and their lines are paced together.
    A chunked body whose framing is larger than the body itself is refused. aiohttp pauses and resumes reading for its own
    buffers: the transport is read when neither it nor this here waits.
    """

    def __init__(self, server: web.Server, refusals: Counter[str], turns: LoopTurns, **options: Any) -> None:
        super().__init__(server, **options)
        self._refusals = refusals
        self._turns = turns
        self._unparsed = b""
        self._waiting = False
        self._was_paused = False
        self._resuming: asyncio.Handle | None = None
        self._newest: StreamReader = EMPTY_PAYLOAD  # the body of the last request that was parsed
        self._announced = 0  # its length, if it has one
        self._chunked: StreamReader | None = None  # the same, if it is chunked and not whole yet
        self._wire_bytes = 0  # of that one

    def data_received(self, data: bytes) -> None:
        if not data:  # aiohttp goes on with what its parser was given before
            super().data_received(data)
            self._note_body()
        elif self._unparsed:
            self._unparsed += data
        elif len(data) > FEW_BYTES and not self._within_length(len(data)) and data.count(b"\r\n") > LINES_AT_ONCE:
            self._unparsed = data
            self._pause_transport_reading()
            self._wait_for_turn()
        else:
            self._parse(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._unparsed = b""
        self._newest, self._chunked = EMPTY_PAYLOAD, None  # a body knows its connection: nothing would free the two
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
        super().connection_lost(exc)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        finished = await super().finish_response(request, resp, start_time)
        self._note_body()  # what came behind an upgrade that was declined is parsed in there
        return finished

    def pause_reading(self) -> None:
        self._was_paused = True
        super().pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """aiohttp calls it with every chunk that it reads. Its parser may keep something back once it was paused, also later
        on; then it goes on in a turn of its own, and once for all chunks that were read together."""
        if not resume_parser:
            super().resume_reading(resume_parser)
        elif self._was_paused and self._resuming is None:
            self._resuming = self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resuming = None
        super().resume_reading()

    def _resume_transport_reading(self) -> None:
        if self._unparsed:
            self._wait_for_turn()
        else:
            super()._resume_transport_reading()

    def _wait_for_turn(self) -> None:
        if not self._waiting:
            self._waiting = True
            self._turns.wait(self)

    def take_turn(self) -> float:
        """Parse the next piece of what came."""
        self._waiting = False
        if not self._unparsed or self._aiohttp_waits:
            return 0.0
        size = len(self._unparsed)
        if not self._within_length(size):
            size = PIECE_BYTES
        piece, self._unparsed = self._unparsed[:size], self._unparsed[size:]
        self._parse(piece)
        if not self._aiohttp_waits:
            self._resume_transport_reading()
        return piece.count(b"\r\n") / LINES_A_SECOND if size == PIECE_BYTES else 0.0

    @property
    def _aiohttp_waits(self) -> bool:
        return self._reading_paused or self._buffer_paused

    def _parse(self, data: bytes) -> None:
        super().data_received(data)
        begun = self._note_body()
        body = self._chunked
        if body is None:
            return
        if body.is_eof():
            self._chunked = None
        elif not begun:
            self._wire_bytes += len(data)
            # While aiohttp waits, a part of these bytes is not parsed yet.
            if self._wire_bytes > 2 * body.total_bytes + FRAMING_BYTES and not self._aiohttp_waits:
                self._refuse(body)

    def _within_length(self, size: int) -> bool:
        """Whether so many bytes more are all of a body of known length, in which lines cost nothing."""
        return self._announced - self._newest.total_bytes >= size and not self._aiohttp_waits

    def _note_body(self) -> bool:
        """Whether the newest request begins a chunked body."""
        if not self._messages:
            return False
        message, body = self._messages[-1]
        if body is self._newest or not isinstance(message, RawRequestMessage):
            return False
        self._newest = body
        self._announced = 0
        self._chunked = None
        if message.chunked:
            self._chunked = body
            self._wire_bytes = body.total_bytes
        elif not body.is_eof():
            self._announced = int(message.headers.get("Content-Length", 0))
        return self._chunked is not None

    def _refuse(self, body: StreamReader) -> None:
        self._refusals[Refusal.CHUNKS] += 1
        logger.debug("more framing than body", extra={"bytes": self._wire_bytes, "body": body.total_bytes})
        self._chunked = None
        self._unparsed = b""
        if self.transport is not None:
            self.transport.abort()


# --- what goes out, and how long it may take --------------------------------------------------------------------------

LINGER_SECONDS = 1.0
"""For how long a body that nobody reads is taken and thrown away, so that its sender gets the refusal and not a reset."""

LINGER_BYTES = 32 << 20
"""How much of it: more than the largest body that any endpoint takes by default."""

UNPARSED = "UNKNOWN"
"""aiohttp's method of a request that it could not parse."""

HTTP_OPTIONS: dict[str, Any] = {
    # The parser would inflate every body as it arrives, on the event loop, whoever sends it and wherever to.
    "auto_decompress": False,
    # It would read on for a time, however much comes; `_discard` does it instead.
    "lingering_time": 0,
}


class HttpConnection(ChunkPacing):
    """`idle_timeout` runs from the end of an answer to the whole head of the next request. `write_timeout`: how long the
    peer may take nothing of what waits for it.
    """

    def __init__(
        self,
        server: web.Server,
        refusals: Counter[str],
        turns: LoopTurns,
        idle_timeout: float,
        write_timeout: float,
        peer: Peer,
        proxies: TrustedProxies,
    ) -> None:
        loop = asyncio.get_running_loop()
        logged: dict[str, Any] = {"access_log": request_logger(), "access_log_class": RequestLog}
        super().__init__(server, refusals, turns, loop=loop, keepalive_timeout=idle_timeout, **HTTP_OPTIONS, **logged)
        self.peer = peer
        self.proxies = proxies
        self._write_timeout = write_timeout
        self._stalled: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._peer_ended = False  # its side of the connection
        self._answering: web.BaseRequest | None = None
        self._answered = 0
        self._answer = self._request_handler
        self._request_handler = self._answer_when_read

    async def _answer_when_read(self, request: web.BaseRequest) -> web.StreamResponse:
        """Requests can be sent faster than their answers are read. They wait here, and aiohttp stops reading more of them."""
        self._answering = request
        if self.writing_paused:
            await request.writer.drain()
        if request._version not in (HttpVersion10, HttpVersion11):
            return _other_version(request)
        assert self._answer is not None
        if self.transport is None and not request.content.is_eof():
            # Lost before aiohttp began with this request: it reports that to the request in progress only.
            request.content.set_exception(ConnectionResetError("connection lost"))
        try:
            return await self._answer(request)
        except Exception as error:
            if error is not request.content.exception():
                raise
            raise ConnectionResetError(str(error)) from None
        finally:
            _let_go(request.content)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        finished = await super().finish_response(request, resp, start_time)
        if not request.content.is_eof():
            await self._discard(request.content)
            _let_go(request.content)
        self._answering = None
        self._answered += 1
        if self._peer_ended and self._answered == self._request_count:
            self.close()
        return finished

    def eof_received(self) -> bool:  # type: ignore[override]  # aiohttp's own has no answer: it always hangs up
        """True to stay open until all that was asked for whole is answered. TLS ends both sides at once."""
        self._peer_ended = self.ssl_context is None and self._newest.is_eof() and self._owes_answers()
        return self._peer_ended

    def _owes_answers(self) -> bool:
        """A stream of events that has begun is none: it has no end, and whoever hangs up ends their side too."""
        streaming = self._answering is not None and self._answering.writer.output_size > 0
        return self._request_count - self._answered > streaming

    async def _discard(self, body: StreamReader) -> None:
        end = body.total_bytes + LINGER_BYTES
        with contextlib.suppress(TimeoutError, web.RequestPayloadError, ConnectionError):
            async with asyncio.timeout(LINGER_SECONDS):
                while self.connected and not body.is_eof() and body.total_bytes < end:
                    await body.readany()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        answer = super().handle_error(request, status, exc, message)
        if request.method == UNPARSED and isinstance(answer, web.Response):
            answer.body = None  # it may have been a HEAD
        return answer

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unwatch()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.transport is not None:
            self._unsent = unsent_bytes(self.transport)
            self._stalled = self._loop.call_later(self._write_timeout, self._check_progress)

    def _unwatch(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _check_progress(self) -> None:
        self._stalled = None
        if self.transport is None:
            return
        if unsent_bytes(self.transport) < self._unsent:
            self._watch()
            return
        self._refusals[Refusal.WRITE_TIMEOUT] += 1
        self.transport.abort()

    def _process_keepalive(self) -> None:
        was_open = self.transport is not None
        super()._process_keepalive()
        if was_open and self.transport is None:
            self._refusals[Refusal.IDLE] += 1


def _let_go(body: StreamReader) -> None:
    """A body that was cut off keeps the error which its reader got. That one knows where it was raised, so everything that was
    at work there would stay, with all that came of the body, until the garbage collector finds it."""
    if (error := body.exception()) is not None:
        error.__traceback__ = error.__context__ = None


def _other_version(request: web.BaseRequest) -> web.Response:
    """The refusal of a request line with another version of HTTP, or none, which counts as 0.9: the parser takes both."""
    answer = refusal(400 if request._version < HttpVersion10 else 505, "HTTP/1.1 is needed")
    answer.force_close()
    # aiohttp would answer in the version that is not spoken. It remembers `request.version` once that was asked for.
    request._version = HttpVersion11
    return answer

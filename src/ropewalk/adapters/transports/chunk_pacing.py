"""How much HTTP framing one connection makes us parse: a chunk of one byte costs as much work as one of kilobytes.

What arrives in many lines is parsed in pieces, with a turn of the event loop between them. The lines of chunked bodies are
paced, and a body whose framing is larger than the body itself is refused. Requests and bodies of a known length are not paced.
"""

import asyncio
import logging
from collections import Counter
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.http import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD

from ropewalk.adapters.transports.proxied import ProxiedConnection
from ropewalk.model.refusals import Refusal

logger = logging.getLogger("ropewalk.server")

PIECE_BYTES = 8 * 1024
"""What is parsed at once when it holds more lines than LINES_AT_ONCE."""

LINES_AT_ONCE = 1000

LINES_A_SECOND = 50_000
"""Of chunked bodies; a chunk has two. With chunks of 1 KiB it is 25 MB a second."""

BURST_SECONDS = 0.2
"""The part of a second's lines that may come at once."""

FRAMING_BYTES = 64 * 1024
"""Chunk sizes, chunk extensions and trailers that any body may have; beyond it they must not be larger than the body."""


class ChunkPacing(ProxiedConnection):
    """aiohttp pauses and resumes reading for its own buffers: the transport is read when neither it nor this here waits."""

    def __init__(self, server: web.Server, refusals: Counter[str], **options: Any) -> None:
        super().__init__(server, **options)
        self._refusals = refusals
        self._unparsed = b""
        self._resting: asyncio.Handle | None = None
        self._paced_until = 0.0
        self._newest: StreamReader = EMPTY_PAYLOAD  # the body of the last request that was parsed
        self._announced = 0  # its length, if it has one
        self._chunked: StreamReader | None = None  # the same, if it is chunked and not whole yet
        self._wire_bytes = 0  # of that one

    def data_received(self, data: bytes) -> None:
        if not data:  # aiohttp goes on with what its parser was given before; it asks for that with every chunk it reads
            super().data_received(data)
            self._note_body()
        elif self._unparsed or self._resting is not None:
            self._unparsed += data
        elif len(data) > PIECE_BYTES and not self._within_length(len(data)) and data.count(b"\r\n") > LINES_AT_ONCE:
            self._unparsed = data
            self._pause_transport_reading()
            self._go_on()
        else:
            self._parse(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._unparsed = b""
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        super().connection_lost(exc)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        finished = await super().finish_response(request, resp, start_time)
        self._note_body()  # what came behind an upgrade that was declined is parsed in there
        return finished

    def _resume_transport_reading(self) -> None:
        if self._resting is not None:
            return
        if self._unparsed:
            self._resting = self._loop.call_soon(self._go_on)
        else:
            super()._resume_transport_reading()

    def _go_on(self) -> None:
        self._resting = None
        if self._unparsed and not self._aiohttp_waits:
            piece, self._unparsed = self._unparsed[:PIECE_BYTES], self._unparsed[PIECE_BYTES:]
            self._parse(piece)
        if not self._aiohttp_waits:
            self._resume_transport_reading()

    @property
    def _aiohttp_waits(self) -> bool:
        return self._reading_paused or self._buffer_paused

    def _parse(self, data: bytes) -> None:
        super().data_received(data)
        begun = self._note_body()
        body = self._chunked
        if body is None:
            return
        self._pace(data.count(b"\r\n"))
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

    def _pace(self, lines: int) -> None:
        now = self._loop.time()
        self._paced_until = max(self._paced_until, now - BURST_SECONDS) + lines / LINES_A_SECOND
        if self._paced_until > now and self._resting is None:
            self._pause_transport_reading()
            self._resting = self._loop.call_at(self._paced_until, self._go_on)

    def _refuse(self, body: StreamReader) -> None:
        self._refusals[Refusal.CHUNKS] += 1
        logger.debug("more framing than body", extra={"bytes": self._wire_bytes, "body": body.total_bytes})
        self._chunked = None
        self._unparsed = b""
        if self.transport is not None:
            self.transport.abort()

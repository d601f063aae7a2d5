"""One aiohttp connection, with timeouts for a peer that does not read its responses or leaves the connection idle.

Bodies are passed on as they were sent; `protocol.body` inflates them where they are needed. `chunk_pacing` limits their
framing.
"""

import asyncio
import contextlib
from collections import Counter
from typing import Any

from aiohttp import StreamReader, web

from ropewalk.adapters.endpoints.chunk_pacing import ChunkPacing
from ropewalk.adapters.endpoints.request_log import RequestLog, request_logger
from ropewalk.adapters.endpoints.turns import LoopTurns
from ropewalk.adapters.endpoints.unsent import unsent_bytes
from ropewalk.model.refusals import Refusal
from ropewalk.protocol.proxies import Peer, TrustedProxies

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
        self._answer = self._request_handler
        self._request_handler = self._answer_when_read

    async def _answer_when_read(self, request: web.BaseRequest) -> web.StreamResponse:
        """Requests can be sent faster than their answers are read. They wait here, and aiohttp stops reading more of them."""
        if self.writing_paused:
            await request.writer.drain()
        assert self._answer is not None
        return await self._answer(request)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        finished = await super().finish_response(request, resp, start_time)
        if not request.content.is_eof():
            await self._discard(request.content)
        return finished

    async def _discard(self, body: StreamReader) -> None:
        end = body.total_bytes + LINGER_BYTES
        with contextlib.suppress(TimeoutError, web.RequestPayloadError, ConnectionError):
            async with asyncio.timeout(LINGER_SECONDS):
                while not body.is_eof() and body.total_bytes < end:
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

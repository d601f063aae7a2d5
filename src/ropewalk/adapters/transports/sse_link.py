"""One SSE connection as the engine sees it: writes gather here and leave in one piece whenever the socket takes them."""

import asyncio

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from ropewalk.adapters.transports.unsent import unsent_bytes
from ropewalk.ports import Visitor

HIGH_WATER = 65_536
FLUSH_PATIENCE = 5.0
_COMMENT = b":\n\n"


class SseLink:
    """Written to by the session, drained by the request's own handler in `run`."""

    def __init__(self, request: web.Request, keepalive: float) -> None:
        self._request = request
        self._keepalive = keepalive
        self._visitor: Visitor | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._closing = False
        self._paused = False
        self._wake = asyncio.Event()

    # --- the engine's side -------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._closing or not data:
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._wake.set()
        if not self._paused and self._visitor is not None and self.pending() > HIGH_WATER:
            self._paused = True
            self._visitor.writing_paused()

    def close(self, code: int, text: str) -> None:
        """Events have no close code: the reason went out as a `disconnect` event, and the answer simply ends."""
        if not self._closing:
            self._closing = True
            self._wake.set()
            # A peer that does not read would hold the handler for ever.
            asyncio.get_running_loop().call_later(FLUSH_PATIENCE, self._abort)

    def pending(self) -> int:
        transport = self._request.transport
        return self._waiting_bytes + (transport.get_write_buffer_size() if transport else 0)

    def unsent(self) -> int:
        transport = self._request.transport
        return self._waiting_bytes + (unsent_bytes(transport) if transport else 0)

    def hold_reading(self, hold: bool) -> None:
        """Nothing to hold: all that a client may say was in its request."""

    # --- the handler's side ------------------------------------------------------------------------------------------

    def attach(self, visitor: Visitor) -> None:
        self._visitor = visitor

    async def run(self, response: web.StreamResponse) -> web.StreamResponse:
        """Returns when either side has ended it."""
        if self._request.transport is None:
            return response
        # Ours and the transport's mark are the same, so that "drained" below means the same to both.
        self._request.transport.set_write_buffer_limits(high=HIGH_WATER)
        response.force_close()
        try:
            writer = await response.prepare(self._request)
            assert writer is not None
            while await self._something_to_do():
                await self._drain(response, writer)
            await response.write_eof()
        except ConnectionError:
            self._closing = True
        return response

    async def _something_to_do(self) -> bool:
        """False once the end is reached: closed, and all written."""
        if not self._waiting and not self._closing:
            self._wake.clear()
            try:
                async with asyncio.timeout(self._keepalive):
                    await self._wake.wait()
            except TimeoutError:
                self.write(_COMMENT)
        return bool(self._waiting)

    async def _drain(self, response: web.StreamResponse, writer: AbstractStreamWriter) -> None:
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        await response.write(data)
        # `write` alone waits only now and then, and could leave us idle with a full transport and a paused session.
        await writer.drain()
        if self._paused and self.pending() <= HIGH_WATER:
            self._paused = False
            if self._visitor is not None:
                self._visitor.writing_resumed()

    def _abort(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()

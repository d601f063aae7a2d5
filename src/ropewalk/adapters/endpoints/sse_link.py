"""One SSE connection for the engine: writes are collected and sent in one piece whenever the socket takes them.

History waits until the response begins: a request is granted as a whole, or refused with a status.
"""

import asyncio
from collections.abc import Mapping

from ropewalk.adapters.endpoints.http_requests import HttpRequest
from ropewalk.adapters.endpoints.http_responses import ResponseStream
from ropewalk.adapters.endpoints.unsent import unsent_bytes
from ropewalk.ports import SessionHandle
from ropewalk.protocol.event_ids import EventIds

HIGH_WATER = 65_536
EARLY_BYTES = 1024 * 1024  # confirmations and live messages that may come before the answer begins
FLUSH_TIMEOUT = 5.0
_COMMENT = b":\n\n"


class SseLink:
    """Written to by the session, drained by the request's own handler in `run`.

    `overfull`: more was written before the answer began than may wait for it. `close_code`: of the session's end, 0 before.
    """

    direct = None

    def __init__(self, request: HttpRequest, keepalive: float) -> None:
        self.overfull = False
        self.close_code = 0
        self._request = request
        self._keepalive = keepalive
        self._session: SessionHandle | None = None
        self._ids: EventIds | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._answering = False
        self._joined = False  # all histories are sent
        self._closing = False
        self._paused = False
        self._wake = asyncio.Event()
        self._histories: list[tuple[asyncio.Task[object], asyncio.Future[None]]] = []
        self._deferred: asyncio.Future[None] | None = None

    # --- the engine's side -------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._closing or not data:
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._wake.set()
        if self._answering:
            self._pause_if_full()
        elif self._waiting_bytes > EARLY_BYTES:
            self.overfull = self._closing = True

    def close(self, code: int, text: str) -> None:
        """Events have no close code: the reason went out as a `disconnect` event, and the answer simply ends."""
        if not self._closing:
            self.close_code = code
            self._closing = True
            self._wake.set()
            # A peer that does not read would block the handler indefinitely.
            asyncio.get_running_loop().call_later(FLUSH_TIMEOUT, self._abort)

    def pending(self) -> int:
        transport = self._request.exchange.transport
        return self._waiting_bytes + (transport.get_write_buffer_size() if transport else 0)

    async def wait_ready(self) -> None:
        """Before the answer has begun, the command that is being handled waits here, and `decided` returns."""
        task = asyncio.current_task()
        if self._answering or self._closing or task is None:
            return
        waiting = asyncio.get_running_loop().create_future()
        self._histories.append((task, waiting))
        if self._deferred is not None and not self._deferred.done():
            self._deferred.set_result(None)
        await waiting

    def unsent(self) -> int:
        transport = self._request.exchange.transport
        return self._waiting_bytes + (unsent_bytes(transport) if transport else 0)

    def hold_reading(self, hold: bool) -> None:
        """No effect: all input of the client was in its request."""

    # --- the handler's side ------------------------------------------------------------------------------------------

    def attach(self, session: SessionHandle) -> None:
        self._session = session

    def lost(self) -> None:
        """The connection has ended."""
        self._closing = True
        self._waiting.clear()
        self._waiting_bytes = 0
        self._wake.set()
        if self._session is not None:
            self._session.connection_lost()

    async def decided(self, command: asyncio.Task[bool]) -> bool:
        """Whether a command was granted: it is done, or its history waits for the answer to begin."""
        self._deferred = asyncio.get_running_loop().create_future()
        await asyncio.wait((command, self._deferred), return_when=asyncio.FIRST_COMPLETED)
        return not command.done() or command.result()

    async def run(self, fields: Mapping[str, str], ids: EventIds) -> ResponseStream:
        """Returns when either side has ended it."""
        self._ids = ids
        if self._request.exchange.transport is not None:
            # Ours and the transport's mark are the same, so that "drained" below means the same to both.
            self._request.exchange.transport.set_write_buffer_limits(high=HIGH_WATER)
        stream = ResponseStream(self._request, 200, fields, close=True)
        self._answering = True
        self._pause_if_full()
        histories = asyncio.create_task(self._send_histories())
        try:
            while await self._something_to_do():
                await self._drain(stream)
            await stream.end()
        except ConnectionError:
            self._closing = True
        finally:
            histories.cancel()
        return stream

    def release(self) -> None:
        """Release the waiting commands. Their output is discarded."""
        self._closing = True
        self._session = None  # it knows this link: nothing but the garbage collector would free the two
        for _, waiting in self._histories:
            if not waiting.done():
                waiting.set_result(None)

    async def _send_histories(self) -> None:
        """Handled one after another, so that at most one piece of one history is pending for a slow client."""
        for command, waiting in self._histories:
            waiting.set_result(None)
            await asyncio.wait([command])
        self._joined = True

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

    async def _drain(self, stream: ResponseStream) -> None:
        joined = self._joined
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._ids is None:
            await stream.write(data)
        else:
            for piece in self._ids.stamped(data):
                await stream.write(piece)
            if joined and self._ids.plain:
                self._ids = None  # offsets only grow now: the ids of a single stream are right as the codec writes them
        if self._paused and self.pending() <= HIGH_WATER:
            self._paused = False
            if self._session is not None:
                self._session.resume_writing()

    def _pause_if_full(self) -> None:
        if not self._paused and self._session is not None and self.pending() > HIGH_WATER:
            self._paused = True
            self._session.pause_writing()

    def _abort(self) -> None:
        if self._request.exchange.transport is not None:
            self._request.exchange.transport.abort()

"""An HTTP connection that answers plain publish requests itself and leaves all other bytes to aiohttp, untouched and in order.

Invariant: aiohttp gets whole requests from their first byte on, and nothing is answered here while it has one under way.
"""

import asyncio
from typing import Any

from aiohttp import web

from ropewalk.adapters.endpoints.http_guard import KEYED
from ropewalk.adapters.endpoints.plain_publish import PlainPaths, PlainPublish
from ropewalk.adapters.endpoints.proxied_connection import ProxiedConnection
from ropewalk.adapters.endpoints.request_log import log_plain_request
from ropewalk.model.errors import Unavailable
from ropewalk.protocol.plain_request import HEAD_END, MOST_HEAD_BYTES, PlainHead, read_head

HOLD_SECONDS = 1.0
"""How long the rest of a body is waited for here. After that aiohttp waits, with a timeout for the whole body."""

PUBLISH = b"POST /"
NO_HEAD = PlainHead(b"\r\n\r\n", b"", b"", {}, 0)


class PlainConnection(ProxiedConnection):
    """`plain`: the paths whose requests it answers. The first of a request may come in pieces: it is held until it is whole."""

    def __init__(self, server: web.Server, plain: PlainPaths, **options: Any) -> None:
        super().__init__(server, **options)
        self._plain = plain
        self._held = b""
        self._awaited: PlainPublish | None = None  # whose body is held, as far as it came
        self._waits_since = 0.0
        self._hold_timer: asyncio.TimerHandle | None = None
        # Of this connection alone: compared with the next head, it tells nobody anything of the key in another's.
        self._last = NO_HEAD
        self._with_aiohttp = not plain
        self._owed: int | None = None  # bytes that aiohttp's last request still has to get; None if that cannot be told

    def data_received(self, data: bytes) -> None:
        if not data or (self._with_aiohttp and not self._back_again()):
            self._pass_on(data)
            return
        if self._held:
            data = self._release() + data
        done, answers = 0, list[bytes]()
        while done < len(data) and (size := self._answer_first(data, done, answers)):
            done += size
        if answers:
            self._write(answers)
        if done < len(data) and not self._hold(data[done:] if done else data):
            self._with_aiohttp, self._owed = True, 0
            self._pass_on(data[done:] if done else data)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None
        if self._awaited is not None:
            self._awaited.cut()
        self._release()
        super().connection_lost(exc)

    # --- requests that are answered here ------------------------------------------------------------------------------

    def _answer_first(self, data: bytes, start: int, answers: list[bytes]) -> int:
        """Answer the request that begins there; its size, or 0 if it is not whole or not for here."""
        head = self._head_of(data, start)
        if head is None or len(data) - start < head.size or self._closing:
            return 0
        publish = self._publish_of(head)
        if publish is None:
            return 0
        begun = self._loop.time()
        body_start, end = start + len(head.raw), start + head.size
        answer = publish.answer(head, data[body_start:end])
        if answer is None:
            return 0
        answers.append(answer)
        if self._logging_enabled:
            log_plain_request(head, 201, self.peer, self.proxies, self._loop.time() - begun)
        return head.size

    def _head_of(self, data: bytes, start: int) -> PlainHead | None:
        """None if there is no whole head, or no plain one."""
        if data.startswith(self._last.raw, start):  # publishers repeat themselves, but for the length
            return self._last
        end = data.find(HEAD_END, start)
        head = read_head(data, start, end) if end >= 0 else None
        if head is not None:
            self._last = head
        return head

    def _publish_of(self, head: PlainHead) -> PlainPublish | None:
        publish = self._plain.get(head.target)
        return publish if publish is not None and publish.takes(head) else None

    def _write(self, answers: list[bytes]) -> None:
        assert self.transport is not None
        self.transport.write(answers[0] if len(answers) == 1 else b"".join(answers))
        self._next_keepalive_close_time = close_time = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(close_time, self._process_keepalive)

    @property
    def _closing(self) -> bool:
        """Nothing is answered any more, or not before the peer has read what waits for it."""
        return self._force_close or self._close or self._paused

    # --- requests that are not whole ----------------------------------------------------------------------------------

    def _hold(self, data: bytes) -> bool:
        """Whether `data` may be the begin of a request for here, of which the rest is waited for."""
        if self._closing:
            return False
        if HEAD_END not in data:
            self._held = data if len(data) <= MOST_HEAD_BYTES and data[:6] == PUBLISH[: len(data)] else b""
            return bool(self._held)
        head = self._head_of(data, 0)
        if head is None or len(data) >= head.size or (publish := self._publish_of(head)) is None:
            return False
        try:
            KEYED.take(len(data))
        except Unavailable:
            return False
        self._held, self._awaited = data, publish
        self._waits_since = self._loop.time()
        if self._hold_timer is None:
            self._hold_timer = self._loop.call_later(HOLD_SECONDS, self._held_long)
        return True

    def _release(self) -> bytes:
        data, self._held = self._held, b""
        if self._awaited is not None:
            self._awaited = None
            KEYED.give_back(len(data))
        return data

    def _held_long(self) -> None:
        """One timer for many requests: most bodies have come when it ends."""
        self._hold_timer = None
        if self._awaited is None:
            return
        wait_until = self._waits_since + HOLD_SECONDS
        if self._loop.time() < wait_until:
            self._hold_timer = self._loop.call_at(wait_until, self._held_long)
        else:
            self._leave_held()

    def _leave_held(self) -> None:
        self._with_aiohttp, self._owed = True, 0
        self._pass_on(self._release())

    def _process_keepalive(self) -> None:
        if self._awaited is not None:  # it is not idle: it has sent a head
            self._leave_held()
        super()._process_keepalive()

    # --- what aiohttp has ---------------------------------------------------------------------------------------------

    def _pass_on(self, data: bytes) -> None:
        if data and self._owed is not None:
            self._owed = _owed_after(data, self._owed)
        super().data_received(data)

    def pause_reading(self) -> None:
        self._owed = None  # the parser keeps something back, and is not asked how much
        super().pause_reading()

    def _back_again(self) -> bool:
        """Whether aiohttp has answered everything, and what comes now begins a request."""
        if self._owed != 0 or self._waiter is None or self._waiter.done() or self._buffer_paused:
            return False
        self._with_aiohttp = not self._plain
        return not self._with_aiohttp


def _owed_after(data: bytes, owed: int) -> int | None:
    """How many bytes are missing after `data` until a request ends, if `owed` were missing before it."""
    start = owed
    while start < len(data):
        end = data.find(HEAD_END, start)
        head = read_head(data, start, end) if end >= 0 else None
        if head is None:
            return None
        start += head.size
    return start - len(data)

"""An HTTP connection that answers plain publish requests itself and leaves all other bytes to aiohttp, untouched and in order.

Invariant: aiohttp gets requests from their first byte on, and only one of the two has requests under way.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ropewalk.adapters.endpoints.head_timeouts import HeadTimeouts
from ropewalk.adapters.endpoints.http_connection import LINES_AT_ONCE, HttpConnection
from ropewalk.adapters.endpoints.http_guard import KEYED
from ropewalk.adapters.endpoints.publish import PublishEndpoint, completed
from ropewalk.adapters.endpoints.request_log import log_plain_request
from ropewalk.model.errors import Unavailable
from ropewalk.model.messages import Publication
from ropewalk.model.refusals import Refusal
from ropewalk.protocol.plain_request import HEAD_END, LINE_END, MOST_HEAD_BYTES, PlainHead, read_head

HOLD_SECONDS = 1.0
"""How long the rest of a body is waited for here. After that aiohttp waits, with a timeout for the whole body."""

MOST_FOLLOWED = 32
"""Requests that came together for aiohttp whose ends are looked for. Behind more of them everything is aiohttp's."""

TURN_BYTES = 8 * 1024
"""Once so much is answered, what came behind it waits for its turn: of the smallest requests it is a millisecond's work."""

PUBLISH = b"POST /"
LENGTH = re.compile(rb"\r\ncontent-length:[\t ]*(\d{1,15})[\t ]*\r\n", re.IGNORECASE)
WITH_BODY = re.compile(rb"\r\n(?:transfer-encoding|content-length):", re.IGNORECASE)
NO_HEAD = PlainHead(HEAD_END, b"", b"", {}, 0, len(HEAD_END))


class PlainConnection(HttpConnection):
    """`connections`: all that are open; this one is among them as long as it is. `publishing`: what answers plain requests, by
    path. `head_timeouts`: how long a head may take from its first piece on.

    A request may come in pieces: its begin is held until it is whole. While a publisher waits for its store, or many requests
    behind each other for their turn, what came is held too, and no more is read.
    """

    def __init__(
        self,
        connections: "set[PlainConnection]",
        publishing: Mapping[bytes, PublishEndpoint],
        head_timeouts: HeadTimeouts,
        *args: Any,
    ) -> None:
        super().__init__(*args)
        self._connections = connections
        self._publishing = publishing
        self._head_timeouts = head_timeouts
        self._half_head = False  # the begin of a head has come, and not the rest
        self._held = b""
        self._awaited: PublishEndpoint | None = None  # whose body is held, as far as it came
        self._waits_since = 0.0
        self._hold_timer: asyncio.TimerHandle | None = None
        # Of this connection alone: what it is compared with tells nobody anything of another's key.
        self._last_head = NO_HEAD
        self._under_way: asyncio.Task[None] | None = None
        self._queued = False  # for a turn
        self._with_aiohttp = False
        self._owed: int | None = 0  # bytes of aiohttp's last request that are still to come; None if that cannot be told

    def data_received(self, data: bytes) -> None:
        if self._under_way is not None or self._queued:
            self._held += data
            self._pause_transport_reading()
        elif not data or (self._with_aiohttp and not self._may_take_over()):
            self._pass_on(data)
        elif self._held:
            since = self._waits_since if self._awaited is not None else 0.0
            self._take(self._release() + data, since)
        else:
            self._take(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connections.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.discard(self)
        self._note_head(half=False)
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None
        if self._awaited is not None:
            self._awaited.cut_off()
        self._release()
        self._queued = False
        super().connection_lost(exc)

    # --- requests that are answered here ------------------------------------------------------------------------------

    def _take(self, data: bytes, since: float = 0.0) -> None:
        """Answer what is whole, hold what may become so, leave everything else to aiohttp. `since`: when the first of it came,
        if that is waiting for the rest of its body."""
        if self._half_head and HEAD_END in data:
            self._note_head(half=False)
        done = 0
        answers: list[bytes] = []
        end = min(len(data), TURN_BYTES)
        while done < end and self._under_way is None and (size := self._answer_first(data, done, answers)):
            done += size
        if answers:
            self._write(answers[0] if len(answers) == 1 else b"".join(answers))
        if done < len(data):
            self._keep(data[done:] if done else data, done, since)

    def _keep(self, rest: bytes, done: int, since: float) -> None:
        """`done`: how much was answered before it."""
        if self._under_way is not None or done >= TURN_BYTES:
            self._held = rest
            self._pause_transport_reading()
            if self._under_way is None:
                self._queued = True
                self._turns.wait(self)
        elif not self._hold(rest, 0.0 if done else since):
            self._leave(rest)

    def take_turn(self) -> float:
        if not self._queued:
            return super().take_turn()
        self._queued = False
        self._go_on()
        return 0.0

    def _go_on(self) -> None:
        """With what was held while it had to wait. Then more is read, unless it has to wait again."""
        if not self._held:
            return
        self._take(self._release())
        waits = self._queued or (self._under_way is not None and self._held)
        if not waits and not self._aiohttp_waits:
            self._resume_transport_reading()

    def _answer_first(self, data: bytes, start: int, answers: list[bytes]) -> int:
        """Answer the request that begins there, or begin to; its size, or 0 if it is not whole or not for here."""
        head = self._head_of(data, start)
        if head is None or len(data) - start < head.size or (endpoint := self._endpoint_of(head)) is None:
            return 0
        publications = endpoint.publications(head, data[start + len(head.raw) : start + head.size])
        if publications is None:
            return 0
        begun = self._loop.time() if self._logging_enabled else 0.0
        if endpoint.instant:
            status, answer = completed(endpoint.answer(publications))
            answers.append(answer)
            if begun:
                self._log(head, status, begun)
        else:
            self._request_in_progress = True
            self._under_way = self._loop.create_task(self._answer_later(endpoint, publications, head, begun))
        return head.size

    async def _answer_later(
        self, endpoint: PublishEndpoint, publications: Sequence[Publication], head: PlainHead, begun: float
    ) -> None:
        status, answer = await endpoint.answer(publications)
        self._under_way = None
        self._request_in_progress = False
        if self._handler_waiter is not None:  # the server stops, and has waited for this
            self._handler_waiter.set_result(None)
        if self.transport is None or self.transport.is_closing():
            return
        if begun:
            self._log(head, status, begun)
        self._write(answer)
        self._go_on()
        if self._peer_ended and not self._owes_answers():
            self.force_close()

    def _owes_answers(self) -> bool:
        return self._under_way is not None or super()._owes_answers()

    def _head_of(self, data: bytes, start: int) -> PlainHead | None:
        """None if there is no whole head, or no plain one."""
        if data.startswith(self._last_head.raw, start):  # publishers repeat themselves
            return self._last_head
        end = data.find(HEAD_END, start)
        head = read_head(data, start, end) if end >= 0 else None
        if head is not None:
            self._last_head = head
        return head

    def _endpoint_of(self, head: PlainHead) -> PublishEndpoint | None:
        """Not while the connection closes, nor before the peer has read what waits for it."""
        endpoint = self._publishing.get(head.target)
        if endpoint is None or self._force_close or self._close or self._paused:
            return None
        return endpoint if endpoint.takes(head) else None

    def _write(self, answer: bytes) -> None:
        assert self.transport is not None
        self.transport.write(answer)
        self._next_keepalive_close_time = close_time = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(close_time, self._process_keepalive)

    def _log(self, head: PlainHead, status: int, begun: float) -> None:
        log_plain_request(head, status, self.peer, self.proxies, self._loop.time() - begun)

    # --- requests that are not whole ----------------------------------------------------------------------------------

    def _hold(self, data: bytes, since: float) -> bool:
        """Whether `data` may be the begin of a request for here, of which the rest is waited for."""
        if HEAD_END not in data:
            if len(data) > MOST_HEAD_BYTES or not data.startswith(PUBLISH[: len(data)]):
                return False
            self._held = data
            self._note_head(half=True)
            return True
        head = self._head_of(data, 0)
        if head is None or len(data) >= head.size or (endpoint := self._endpoint_of(head)) is None:
            return False
        try:
            KEYED.take(len(data))
        except Unavailable:
            return False
        self._held, self._awaited = data, endpoint
        self._waits_since = since or self._loop.time()
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
            self._leave(self._release())

    def _note_head(self, half: bool) -> None:
        if half != self._half_head:
            self._half_head = half
            if half:
                self._head_timeouts.begin(self)
            else:
                self._head_timeouts.end(self)

    def time_out(self) -> None:
        """The rest of a head did not come. It may wait while something before it is answered."""
        self._half_head = False
        if not self._aiohttp_is_idle:
            self._note_head(half=True)
        elif self.transport is not None:
            self._refusals[Refusal.HEAD_TIMEOUT] += 1
            self.transport.abort()

    def _process_keepalive(self) -> None:
        if self._awaited is not None:  # it is not idle: a head has come
            self._leave(self._release())
        if self._under_way is None and not self._queued:
            super()._process_keepalive()
        else:
            self._keepalive_handle = None

    # --- what aiohttp has ---------------------------------------------------------------------------------------------

    def _leave(self, data: bytes) -> None:
        """Leave what comes from here on to aiohttp."""
        self._with_aiohttp, self._owed = True, 0
        self._pass_on(data)

    def _pass_on(self, data: bytes) -> None:
        if not data:
            super().data_received(data)
            return
        done = 0
        for end in _request_ends(data, self._owed or 0):
            self._give(data[done:end])
            done = end
        if self._owed is not None:
            self._owed = _owed_after(data, self._owed)
        self._give(data[done:] if done else data)

    def _give(self, data: bytes) -> None:
        """Give aiohttp a piece, and see whether it ends within a head."""
        within_body, parsed = not self._newest.is_eof(), self._request_count
        super().data_received(data)
        waits = self._unparsed or self._aiohttp_waits
        self._note_head(half=not (within_body or waits) and self._request_count == parsed)

    @property
    def _aiohttp_is_idle(self) -> bool:
        """Whether it has answered every request of which it has the head."""
        return self._waiter is not None and not self._waiter.done()

    def pause_reading(self) -> None:
        self._owed = None  # aiohttp's parser keeps something back, and does not tell how much
        super().pause_reading()

    def _may_take_over(self) -> bool:
        """Whether aiohttp has answered everything, and what comes now begins a request."""
        if self._owed != 0 or not self._aiohttp_is_idle or self._unparsed or self._buffer_paused:
            return False
        self._with_aiohttp = False
        return True


def _owed_after(data: bytes, owed: int) -> int | None:
    """How many bytes are missing after `data` until a request ends, if `owed` were missing before it."""
    start = owed
    for _ in range(MOST_FOLLOWED):
        if start >= len(data):
            return start - len(data)
        end = data.find(HEAD_END, start, start + MOST_HEAD_BYTES)
        head = read_head(data, start, end) if end >= 0 else None
        if head is None:
            return None
        start += head.size
    return None


def _request_ends(data: bytes, owed: int) -> Iterator[int]:
    """Where requests seem to end before the end of `data`: behind bodies whose length is told, otherwise behind empty lines.

    aiohttp forgets the requests that it has parsed when something in the same piece cannot be. A cut in a wrong place harms
    nothing. What has many lines is cut by `ChunkPacing`.
    """
    start = owed
    for number in range(MOST_FOLLOWED):
        end = data.find(HEAD_END, start)
        if end < 0 or end + len(HEAD_END) == len(data):
            return
        if not number and data.count(LINE_END) > LINES_AT_ONCE:
            return
        if (head := read_head(data, start, end)) is not None:
            start += head.size
        elif (length := LENGTH.search(data, start, end + len(LINE_END))) is not None:
            start = end + len(HEAD_END) + int(length[1])
        elif not WITH_BODY.search(data, start, end) or (end := data.find(HEAD_END, end + len(HEAD_END))) >= 0:
            start = end + len(HEAD_END)
        else:
            return
        if start >= len(data):
            return
        yield start

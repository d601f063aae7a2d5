"""Counts the history that waits in this process until clients take it, and bounds it.

Invariant: while more waits than may, no further history is read, for no client. Who takes nothing of it meanwhile does not keep
the others waiting: it is disconnected, comes back and asks for what follows.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

from ropewalk.engine.link import Link
from ropewalk.model.history import MAX_ANSWER_BYTES, memory_bytes
from ropewalk.model.messages import Registered

T = TypeVar("T")

MAX_STALL_SECONDS = 5.0
"""For how long a client may take nothing of its history while others wait for theirs."""


class _Held:
    """A part of an answer that a client has not taken, since a time of the event loop."""

    __slots__ = ("link", "since")

    def __init__(self, link: Link, since: float) -> None:
        self.link = link
        self.since = since


class WaitingHistory:
    """`bytes` wait now; at `limit` clients wait until others have taken some. 0 is no limit."""

    def __init__(self, limit: int, max_stall: float = MAX_STALL_SECONDS) -> None:
        self.bytes = 0
        self._limit = limit
        self._max_stall = max_stall
        self._held: dict[_Held, None] = {}  # in the order of their times
        self._turns: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def _full(self) -> bool:
        return 0 < self._limit <= self.bytes

    async def read(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask for one more answer when there is room for it."""
        await self._room()
        try:
            return await ask()
        finally:
            self._wake()  # those who wait now may find that this client takes everything at once, or is gone

    async def _room(self) -> None:
        while self._full:
            loop = asyncio.get_running_loop()
            turn: asyncio.Future[None] = loop.create_future()
            self._turns.append(turn)
            if self._timer is None:
                self._timer = loop.call_later(self._max_stall, self._disconnect_overdue)
            await turn

    async def drained(self, link: Link, messages: Sequence[Registered], written: int) -> None:
        """As `Link.drained`; meanwhile these messages and so many bytes are kept for the client. At once on the fast path."""
        if link.slow:
            with self.holding(link, written + memory_bytes(messages)):
                await link.drained()

    @contextmanager
    def holding(self, link: Link, size: int) -> Iterator[None]:
        """Count so many bytes."""
        held = _Held(link, asyncio.get_running_loop().time())
        self._held[held] = None
        self.bytes += size
        try:
            yield
        finally:
            del self._held[held]
            self.bytes -= size
            self._wake()

    def _wake(self) -> None:
        if not self._turns or self._full:
            return
        places = (self._limit - self.bytes) // MAX_ANSWER_BYTES + 1
        while places > 0 and self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)
                places -= 1

    def _disconnect_overdue(self) -> None:
        """As many as others wait for."""
        loop, self._timer = asyncio.get_running_loop(), None
        if not self._turns:
            return
        overdue = [held.link for held in self._held if loop.time() - held.since >= self._max_stall]
        for link in islice(overdue, len(self._turns)):
            link.overflow()
        self._timer = loop.call_later(self._max_stall, self._disconnect_overdue)

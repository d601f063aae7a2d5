"""Counts and bounds the history that this process holds until clients receive it.

Invariant: above the limit no further history is read, for any client. A client that receives nothing for `MAX_STALL_SECONDS`
while others wait is disconnected; it can reconnect and request the rest.
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
"""How long a client may stop receiving its history while others wait for theirs."""


class _Held:
    """Part of an answer that a client has not received. `since`: event loop time."""

    __slots__ = ("link", "since")

    def __init__(self, link: Link, since: float) -> None:
        self.link = link
        self.since = since


class WaitingHistory:
    """`bytes` are held now. At `limit` clients wait until others have received theirs; 0 for no limit."""

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
        """Read one more answer when there is room for it."""
        await self._room()
        try:
            return await ask()
        finally:
            self._wake()  # the answer may take no room: the client receives it at once, or is gone

    async def _room(self) -> None:
        while self._full:
            loop = asyncio.get_running_loop()
            turn: asyncio.Future[None] = loop.create_future()
            self._turns.append(turn)
            if self._timer is None:
                self._timer = loop.call_later(self._max_stall, self._disconnect_overdue)
            await turn

    async def drained(self, link: Link, messages: Sequence[Registered], written: int) -> None:
        """As `Link.drained`, and counts the messages and the written bytes meanwhile. Returns at once on the fast path."""
        if link.slow:
            with self.holding(link, written + memory_bytes(messages)):
                await link.drained()

    @contextmanager
    def holding(self, link: Link, size: int) -> Iterator[None]:
        """Count `size` bytes as held."""
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
        """Disconnect stalled clients, at most one per waiting client."""
        loop, self._timer = asyncio.get_running_loop(), None
        if not self._turns:
            return
        overdue = [held.link for held in self._held if loop.time() - held.since >= self._max_stall]
        for link in islice(overdue, len(self._turns)):
            link.overflow()
        self._timer = loop.call_later(self._max_stall, self._disconnect_overdue)

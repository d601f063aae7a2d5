"""Counts and bounds the history that this process holds until clients receive it.

Invariant: above the limit no further history is read, for any client. A read counts as a full answer while the store has not
answered. A client that receives nothing for `MAX_STALL_SECONDS` while others wait is disconnected; it can reconnect and request
the rest.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
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
    """`bytes` are held now. At `limit` clients wait, in their order, until others have received theirs; 0 for no limit.

    While a client waits, the limit is reached: each end of a read or of a delivery gives the free room to the first clients.
    """

    def __init__(self, limit: int, max_stall: float = MAX_STALL_SECONDS) -> None:
        self.bytes = 0
        self._reading = 0  # bytes reserved for reads in flight
        self._limit = limit
        self._max_stall = max_stall
        self._held: dict[_Held, None] = {}  # in the order of their times
        self._turns: deque[tuple[asyncio.Future[None], int]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def _full(self) -> bool:
        return 0 < self._limit <= self.bytes + self._reading

    async def read(self, ask: Callable[[], Awaitable[T]], size: int = MAX_ANSWER_BYTES) -> T:
        """Read one more answer, of up to `size` bytes, when there is room for it."""
        if self._full:
            await self._take_turn(size)
        else:
            self._reading += size
        try:
            return await ask()
        finally:
            self._end_read(size)  # the answer may take no room: the client receives it at once, or is gone

    async def _take_turn(self, size: int) -> None:
        """Wait until `_wake` reserves the room."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._turns.append((turn, size))
        if self._timer is None:
            self._timer = loop.call_later(self._max_stall, self._disconnect_overdue)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the room was reserved before the cancellation
                self._end_read(size)
            raise

    def _end_read(self, size: int) -> None:
        self._reading -= size
        self._wake()

    async def drained(self, link: Link, held: Iterable[Sequence[Registered]], written: int) -> None:
        """As `Link.drained`, and counts the held messages and the written bytes meanwhile. Returns at once on the fast path."""
        if link.slow:
            with self.holding(link, written + sum(map(memory_bytes, held))):
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
        while self._turns and not self._full:
            turn, size = self._turns.popleft()
            if not turn.done():
                self._reading += size
                turn.set_result(None)

    def _disconnect_overdue(self) -> None:
        """Disconnect stalled clients, at most one per waiting client."""
        loop, self._timer = asyncio.get_running_loop(), None
        if not self._turns:
            return
        overdue = [held.link for held in self._held if loop.time() - held.since >= self._max_stall]
        for link in islice(overdue, len(self._turns)):
            link.overflow()
        self._timer = loop.call_later(self._max_stall, self._disconnect_overdue)

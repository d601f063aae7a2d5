"""Who waits for something of the server: pushes, reads and pings for their answers, and senders for room on the wire."""

import asyncio

from ropewalk.client.errors import CableError, Unreachable
from ropewalk.client.events import KeptMessages
from ropewalk.model.messages import Position


class BrokyWaiters:
    """Those who gave up waiting are passed over."""

    def __init__(self) -> None:
        self._pushes: dict[int, asyncio.Future[Position]] = {}
        self._pongs: dict[int, asyncio.Future[None]] = {}
        self._reads: dict[int, asyncio.Future[KeptMessages]] = {}
        self._senders: list[asyncio.Future[None]] = []

    @property
    def anybody_pushes(self) -> bool:
        return bool(self._pushes or self._senders)

    def push(self, ref: int) -> asyncio.Future[Position]:
        self._pushes[ref] = waiter = asyncio.get_running_loop().create_future()
        return waiter

    def pong(self, ref: int) -> asyncio.Future[None]:
        self._pongs[ref] = waiter = asyncio.get_running_loop().create_future()
        return waiter

    def read(self, ref: int) -> asyncio.Future[KeptMessages]:
        self._reads[ref] = waiter = asyncio.get_running_loop().create_future()
        return waiter

    def sender(self) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._senders.append(waiter)
        return waiter

    def gave_up(self, ref: int) -> bool:
        """Whoever pushed this does not wait any more. False if it was answered."""
        return self._pushes.pop(ref, None) is not None

    def registered(self, ref: int, position: Position) -> None:
        waiter = self._pushes.pop(ref, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(position)

    def refused(self, ref: int, error: Exception) -> None:
        waiter = self._pushes.pop(ref, None)
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def ponged(self, ref: int) -> None:
        waiter = self._pongs.pop(ref, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def was_read(self, ref: int, answer: KeptMessages | CableError) -> None:
        waiter = self._reads.pop(ref, None)
        if waiter is None or waiter.done():
            return
        if isinstance(answer, KeptMessages):
            waiter.set_result(answer)
        else:
            waiter.set_exception(answer)

    def gave_up_reading(self, ref: int) -> None:
        self._reads.pop(ref, None)

    def wake_senders(self) -> None:
        senders, self._senders = self._senders, []
        for waiter in senders:
            if not waiter.done():
                waiter.set_result(None)

    def fail_senders(self, error: Exception) -> None:
        senders, self._senders = self._senders, []
        for waiter in senders:
            if not waiter.done():
                waiter.set_exception(error)

    def lost(self) -> None:
        """The connection is gone, and with it the answers to pings."""
        pongs, self._pongs = self._pongs, {}
        for waiter in pongs.values():
            if not waiter.done():
                waiter.set_exception(Unreachable("the connection was lost: what was sent without an answer may be lost too"))

    def ended(self, error: Exception, for_pushes: Exception) -> None:
        """`for_pushes`: the same as a producer is told it."""
        for ref in list(self._pushes):
            self.refused(ref, for_pushes)
        self.fail_senders(for_pushes)
        reads, self._reads = self._reads, {}
        for waiter in reads.values():
            if not waiter.done():
                waiter.set_exception(error)

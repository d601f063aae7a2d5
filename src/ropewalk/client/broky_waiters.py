"""Who waits for something of the server: pushes for their answers, pings for theirs, and senders for room on the wire."""

import asyncio

from ropewalk.client.errors import Unreachable
from ropewalk.model.messages import Position


class BrokyWaiters:
    """Those who gave up waiting are passed over."""

    def __init__(self) -> None:
        self._pushes: dict[int, asyncio.Future[Position]] = {}
        self._pongs: dict[int, asyncio.Future[None]] = {}
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

    def ended(self, error: Exception) -> None:
        for ref in list(self._pushes):
            self.refused(ref, error)
        self.fail_senders(error)

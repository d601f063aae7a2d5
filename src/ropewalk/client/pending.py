"""Callers that wait for the server: for the answer to a push, a history read or a ping, or for a connection to send on."""

import asyncio
from enum import Enum
from typing import Any


class Kind(Enum):
    PUSH = "push"
    READ = "read"
    PING = "ping"
    SEND = "send"


class PendingCalls:
    """One future per ref. Cancelled futures are ignored."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[Kind, asyncio.Future[Any]]] = {}

    @property
    def publishing(self) -> bool:
        """Whether a push or a send waits."""
        return any(kind in (Kind.PUSH, Kind.SEND) for kind, _ in self._calls.values())

    def add(self, kind: Kind, ref: int) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[ref] = kind, future
        return future

    def discard(self, ref: int) -> bool:
        """The caller does not wait any more. False if it was answered."""
        return self._calls.pop(ref, None) is not None

    def settle(self, ref: int, answer: object) -> None:
        """Exceptions are raised to the caller."""
        _, future = self._calls.pop(ref, (None, None))
        if future is None or future.done():
            return
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def settle_all(self, kind: Kind, answer: object = None) -> None:
        for ref in [ref for ref, (each, _) in self._calls.items() if each is kind]:
            self.settle(ref, answer)

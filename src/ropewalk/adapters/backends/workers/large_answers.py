"""Answers with much history go over the bus in parts, as fast as the other side reads them.

Invariant: an answer is what the store had when it was asked, however long it takes to send. Several of them take turns, and
what else is sent meanwhile waits for one part at the most.
"""

import asyncio
from collections import deque
from collections.abc import Iterator

from msgspec.structs import replace

from ropewalk.adapters.backends.workers import wire
from ropewalk.adapters.backends.workers.wire import ANSWER, PART, BusConnection, HistoryPieces, frame
from ropewalk.model.history import HistoryPage
from ropewalk.model.messages import Registered

PART_BYTES = 256 * 1024
"""Of payloads, in one frame. It holds at least one message."""

MESSAGE_BYTES = 200
"""What a message takes besides its payload, roughly."""


class LargeAnswers:
    """To one connection. `go_on` when that has caught up."""

    def __init__(self, connection: BusConnection) -> None:
        self._connection = connection
        self._under_way: deque[Iterator[bytes]] = deque()

    def takes(self, number: int, method: str, answer: object) -> bool:
        """Whether it is large, and then it is sent from here."""
        if not isinstance(answer, HistoryPage | list):
            return False
        pieces = [answer] if isinstance(answer, HistoryPage) else answer
        if sum([_size(message) for piece in pieces for message in piece.messages]) <= PART_BYTES:
            return False
        self._under_way.append(_frames(number, method, *_taken_out(answer)))
        self.go_on()
        return True

    def go_on(self) -> None:
        connection = self._connection
        while self._under_way and not connection.behind:
            if connection.buffered > wire.MUCH_BUFFERED:  # a transport that writes once a tick: then it is known who is behind
                asyncio.get_running_loop().call_soon(self.go_on)
                return
            answer = self._under_way.popleft()
            part = next(answer, None)
            if part is not None:
                connection.send(part)
                self._under_way.append(answer)

    def stop(self) -> None:
        """Nobody is there any more."""
        self._under_way.clear()


def _taken_out(answer: HistoryPage | HistoryPieces) -> tuple[list[Registered], HistoryPage | HistoryPieces]:
    """All messages of an answer, and the answer without them."""
    if isinstance(answer, HistoryPage):
        return list(answer.messages), replace(answer, messages=())
    messages = [message for piece in answer for message in piece.messages]
    return messages, [replace(piece, messages=(), before=len(piece.messages)) for piece in answer]


def _frames(number: int, method: str, messages: list[Registered], without: HistoryPage | HistoryPieces) -> Iterator[bytes]:
    part: list[Registered] = []
    size = 0
    for message in messages:
        if part and size + _size(message) > PART_BYTES:
            yield frame(PART, number, method, part)
            part, size = [], 0
        part.append(message)
        size += _size(message)
    yield frame(PART, number, method, part)
    yield frame(ANSWER, number, method, without)


def _size(message: Registered) -> int:
    return len(message.payload) + MESSAGE_BYTES

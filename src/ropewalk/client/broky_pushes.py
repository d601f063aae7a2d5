"""Pushes under way: which are on the wire, which wait for room there, and which have to be sent again. No I/O.

At most `limit` bytes of them are unanswered, as the server asked; they go out in the order in which they came. What was not
answered when a connection was lost goes out first on the next one, the same bytes with the same uids.
"""

from collections import deque

from msgspec import Struct


class _Push(Struct):
    """`failures`: how many attempts did not bring an answer. `wanted`: somebody still waits for it."""

    ref: int
    frame: bytes
    failures: int = 0
    wanted: bool = True


class PushWindow:
    """`limit` is 0 while there is no connection: then everything waits."""

    def __init__(self) -> None:
        self._limit = 0
        self._on_the_wire: dict[int, _Push] = {}
        self._waiting: deque[_Push] = deque()
        self._resting: dict[int, _Push] = {}
        self._unanswered = 0

    def __len__(self) -> int:
        return len(self._on_the_wire) + len(self._waiting) + len(self._resting)

    def add(self, ref: int, frame: bytes) -> list[bytes]:
        """A push. Returns what is to be written now, as all methods here do."""
        self._waiting.append(_Push(ref, frame))
        return self._sendable()

    def opened(self, limit: int) -> list[bytes]:
        """There is a connection."""
        self._limit = max(limit, 1)
        return self._sendable()

    def lost(self) -> None:
        """The connection is gone, and with it every answer."""
        unanswered = [push for push in self._on_the_wire.values() if push.wanted]
        self._waiting.extendleft(reversed(unanswered))
        self._on_the_wire.clear()
        self._limit = self._unanswered = 0

    def failed(self, attempts: int) -> list[int]:
        """An attempt to reach the server failed for all of them. Returns the refs for which it was the last one."""
        for push in (*self._waiting, *self._resting.values()):
            push.failures += 1
        ended = [push.ref for push in (*self._waiting, *self._resting.values()) if push.failures >= attempts]
        for ref in ended:
            self.forget(ref)
        return ended

    def answered(self, ref: int) -> list[bytes]:
        push = self._on_the_wire.pop(ref, None)
        if push is not None:
            self._unanswered -= len(push.frame)
        return self._sendable()

    def rest(self, ref: int) -> int:
        """The server cannot register it now: it is sent again after `again`. Returns how many attempts have failed."""
        push = self._on_the_wire.pop(ref, None)
        if push is None or not push.wanted:
            return 0
        self._unanswered -= len(push.frame)
        self._resting[ref] = push
        push.failures += 1
        return push.failures

    def again(self, ref: int) -> list[bytes]:
        push = self._resting.pop(ref, None)
        if push is not None:
            self._waiting.append(push)
        return self._sendable()

    def forget(self, ref: int) -> None:
        """Nobody waits for it any more. It is not sent again; what is on the wire is unanswered still."""
        if ref in self._on_the_wire:
            self._on_the_wire[ref].wanted = False
        elif self._resting.pop(ref, None) is None:
            self._waiting = deque(push for push in self._waiting if push.ref != ref)

    def forget_all(self) -> None:
        """All who waited were told that it failed."""
        for push in self._on_the_wire.values():
            push.wanted = False
        self._waiting.clear()
        self._resting.clear()

    def _sendable(self) -> list[bytes]:
        frames: list[bytes] = []
        while self._waiting and self._limit:
            push = self._waiting[0]
            if self._on_the_wire and self._unanswered + len(push.frame) > self._limit:
                break
            self._waiting.popleft()
            self._on_the_wire[push.ref] = push
            self._unanswered += len(push.frame)
            frames.append(push.frame)
        return frames

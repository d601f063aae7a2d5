"""Frames that wait for their turn, and the subscribes that were answered while they waited.

The rule it keeps: a repeated subscribe that arrived before the first one was answered is known as such. A client repeats it
because the answer is slow in coming; `@anycable/core` takes a second confirmation for one it never asked for, and unsubscribes.
"""

from collections import deque

from ropewalk.model.commands import Subscribe


class Inbox:
    """Exists while frames wait. Frames are numbered as they are taken, so that arrival and answer can be compared."""

    __slots__ = ("_answered", "_frames", "_taken")

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        self._taken = 0
        self._answered: dict[str, tuple[int, Subscribe]] = {}

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frame: bytes) -> None:
        self._frames.append(frame)

    def take(self) -> bytes:
        self._taken += 1
        return self._frames.popleft()

    def answered(self, command: Subscribe) -> None:
        """The command that was taken last has been answered, and with it its repeats among the frames that wait now."""
        if self._frames:
            waiting = {name: each for name, each in self._answered.items() if each[0] > self._taken}
            self._answered = {**waiting, command.identifier: (self._taken + len(self._frames), command)}

    def answer_to(self, identifier: str) -> Subscribe | None:
        """The command whose answer counts for a subscribe that was taken last; None if it wants one of its own."""
        upto, command = self._answered.get(identifier, (0, None))
        return command if self._taken <= upto else None

    def forget(self, identifier: str) -> None:
        """Unsubscribed: the next subscribe is no repeat."""
        self._answered.pop(identifier, None)

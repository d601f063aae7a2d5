"""Frames of a client that are not handled yet, bounded by number and bytes, and how fast they are handled.

Above either bound the client's socket is not read until enough frames were handled; nothing is lost. A client repeats a
subscribe when the answer is slow. A repeat that arrived before the first answer must not be answered again: `@anycable/core`
takes a second confirmation for one it never asked for, and unsubscribes.
"""

import asyncio
from collections.abc import Callable

from ropewalk.core.quotas import TokenBucket
from ropewalk.model.commands import Subscribe

MAX_FRAMES, RESUME_FRAMES = 64, 16
MAX_BYTES, RESUME_BYTES = 131_072, 65_536
BYTES_A_COMMAND = 4096  # of an answer; a longer one counts against the command rate as often as it has so many


class Inbox:
    """Frames in the order they came, numbered as they are taken, so that arrival and answer can be compared. It exists while
    frames wait. `hold` stops reading the client's socket (True) or goes on with it (False)."""

    __slots__ = ("_answered", "_begins", "_bytes", "_done", "_ended", "_frames", "_handling", "_hold", "_taken", "held")

    def __init__(self, hold: Callable[[bool], None]) -> None:
        self._frames: list[bytes] = []  # so few that taking the first costs nothing
        self._bytes = 0
        self._hold = hold
        self._taken = 0
        self._answered: dict[str, tuple[int, Subscribe]] | None = None
        self._done: asyncio.Future[None] | None = None
        self._begins: asyncio.Future[None] | None = None
        self._handling = self._ended = False
        self.held = False

    def __bool__(self) -> bool:
        return bool(self._frames)

    def put(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._bytes += len(frame)
        if not self.held and (len(self._frames) >= MAX_FRAMES or self._bytes >= MAX_BYTES):
            self.held = True
            self._hold(True)

    def take(self) -> bytes:
        frame = self._frames.pop(0)
        self._taken += 1
        self._handling = True
        self._notify()
        self._bytes -= len(frame)
        if self.held and len(self._frames) <= RESUME_FRAMES and self._bytes <= RESUME_BYTES:
            self.held = False
            self._hold(False)
        return frame

    def finished(self) -> None:
        """The frame that was taken last is handled."""
        self._handling = False

    async def wait_idle(self) -> None:
        """Until its end, or until a frame is being handled that waits for something: the store, or credit of the client."""
        while not (self._handling or self._ended):
            if self._begins is None:
                self._begins = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._begins)

    def _notify(self) -> None:
        """In the next turn of the event loop, when a frame that waits for nothing is handled."""
        if self._begins is not None:
            self._begins.set_result(None)
            self._begins = None

    async def handled(self) -> None:
        """Until its end."""
        if self._done is None:
            self._done = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._done)

    def end(self) -> None:
        """Nothing of it waits any more, or will be handled."""
        self._ended = True
        self._notify()
        if self._done is not None:
            self._done.set_result(None)

    def answered(self, command: Subscribe) -> None:
        """The command that was taken last has been answered, and with it its repeats among the frames that wait now."""
        if self._frames:
            waiting = {name: each for name, each in (self._answered or {}).items() if each[0] > self._taken}
            self._answered = {**waiting, command.identifier: (self._taken + len(self._frames), command)}

    def answer_to(self, identifier: str) -> Subscribe | None:
        """The command whose answer counts for a subscribe that was taken last; None if it wants one of its own."""
        if self._answered is None:
            return None
        upto, command = self._answered.get(identifier, (0, None))
        return command if self._taken <= upto else None

    def forget(self, identifier: str) -> None:
        """Unsubscribed: the next subscribe is no repeat."""
        if self._answered is not None:
            self._answered.pop(identifier, None)


class CommandRate(TokenBucket):
    """A client that sends faster than its rate waits; it loses nothing and nobody waits with it."""

    __slots__ = ()

    async def wait(self) -> float:
        """After a command was not allowed: until it is. Returns for how many seconds it was."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            await asyncio.sleep(1 / self._rate)
            if self.allow(loop.time()):
                return loop.time() - began

    def charge(self, answered: int) -> None:
        """A command that was answered with so many bytes counts as several where these are many."""
        self.spend(answered // BYTES_A_COMMAND)

"""The queue of a client's unhandled frames, bounded by number and bytes, and the command rate limit.

Above either bound the client's socket is not read until enough frames were handled; nothing is lost. A client repeats a
subscribe when the answer is slow. A repeat that arrived before the first answer must not be answered again: `@anycable/core`
treats a second confirmation as an unknown subscription, and unsubscribes.
"""

import asyncio
from collections.abc import Callable

from ropewalk.core.quotas import TokenBucket
from ropewalk.model.commands import Subscribe

MAX_FRAMES, RESUME_FRAMES = 64, 16
MAX_BYTES, RESUME_BYTES = 131_072, 65_536
BYTES_PER_COMMAND = 4096  # a longer answer counts as one more command per this many bytes


class Inbox:
    """Frames in order of arrival, numbered as they are taken, so that arrival and answer can be compared. A session has an
    inbox only while frames wait. `hold` pauses (True) or resumes (False) reading of the client's socket."""

    __slots__ = ("_answered", "_begins", "_bytes", "_done", "_ended", "_frames", "_handling", "_hold", "_taken", "held")

    def __init__(self, hold: Callable[[bool], None]) -> None:
        self._frames: list[bytes] = []  # short, so that pop(0) is cheap
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
        """The last frame taken is handled."""
        self._handling = False

    async def wait_idle(self) -> None:
        """Wait for the end, or until the handling of a frame is suspended: by the store, or for credit of the client."""
        while not (self._handling or self._ended):
            if self._begins is None:
                self._begins = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._begins)

    def _notify(self) -> None:
        """Wake `wait_idle`, which runs in the next turn of the event loop: by then a frame that does not suspend is handled."""
        if self._begins is not None:
            self._begins.set_result(None)
            self._begins = None

    async def handled(self) -> None:
        """Wait for the end."""
        if self._done is None:
            self._done = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._done)

    def end(self) -> None:
        """All frames are handled, or the session has ended."""
        self._ended = True
        self._notify()
        if self._done is not None:
            self._done.set_result(None)

    def answered(self, command: Subscribe) -> None:
        """The last command taken has been answered, and with it its repeats among the waiting frames."""
        if self._frames:
            waiting = {name: each for name, each in (self._answered or {}).items() if each[0] > self._taken}
            self._answered = {**waiting, command.identifier: (self._taken + len(self._frames), command)}

    def answer_to(self, identifier: str) -> Subscribe | None:
        """The earlier command whose answer counts for the last subscribe taken; None if it needs its own answer."""
        if self._answered is None:
            return None
        upto, command = self._answered.get(identifier, (0, None))
        return command if self._taken <= upto else None

    def forget(self, identifier: str) -> None:
        """Unsubscribed: the next subscribe is not a repeat."""
        if self._answered is not None:
            self._answered.pop(identifier, None)


class CommandRate(TokenBucket):
    """Delays the commands of a client that exceeds its rate. No command is lost, and other clients are not delayed."""

    __slots__ = ()

    async def wait(self) -> float:
        """Wait until a command is allowed. Returns the seconds waited."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            await asyncio.sleep(1 / self._rate)
            if self.allow(loop.time()):
                return loop.time() - began

    def charge(self, answered: int) -> None:
        """Count the bytes of a long answer as further commands."""
        self.spend(answered // BYTES_PER_COMMAND)

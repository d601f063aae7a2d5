"""Limits how long busy clients occupy the event loop: turns for large work, and paced reading of WebSocket connections.

There is one turn per iteration of the event loop, so many busy clients block it no longer than one, and other clients are
served in between.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

BURST_SECONDS = 0.05
"""Pause time that may be carried over: makes up for late timers, and for little more."""

TURN_SECONDS = 0.001
"""Length of a turn. All work done without a turn shares one budget of this length per iteration of the event loop."""

FREE_SECONDS = 0.0001
"""Work that is not charged to the budget: clients with little work do not wait for busy ones."""


class Waiting(Protocol):
    def take_turn(self) -> float:
        """Do a small piece of work. Returns the pause in seconds before the next turn, which limits the rate of such work."""


class LoopTurns:
    """First come, first served. A client with more work queues again, behind the others. Work within the budget `left` needs no
    turn, if it is reported with `worked`.

    Args:
        clock: measures the duration of work; uvloop's clock does not advance within an iteration.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._waiting: deque[Waiting] = deque()
        self._free_at = 0.0
        self._worked = 0.0

    @property
    def left(self) -> float:
        """Seconds of the budget for work without a turn in this iteration of the event loop; 0 or less if it is used up."""
        return TURN_SECONDS - self._worked

    def worked(self, seconds: float) -> None:
        """Charge work done without a turn to the budget."""
        if seconds > FREE_SECONDS:  # usually less, which needs no callback
            if not self._worked:
                asyncio.get_running_loop().call_soon(self._reset)
            self._worked += seconds

    def _reset(self) -> None:
        self._worked = 0.0

    def wait(self, who: Waiting) -> None:
        self._waiting.append(who)
        if len(self._waiting) == 1:
            self._schedule()

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        if self._free_at > loop.time():
            loop.call_at(self._free_at, self._next)
        else:
            loop.call_soon(self._next)

    def _next(self) -> None:
        seconds = 0.0
        try:
            seconds = self._waiting[0].take_turn()
        finally:
            earliest = asyncio.get_running_loop().time() - BURST_SECONDS
            self._free_at = max(self._free_at, earliest) + seconds
            self._waiting.popleft()
            if self._waiting:
                self._schedule()


class PacedStarts:
    """Small pieces of work of very many clients, such as handshakes: in one turn as many as fit, in order of arrival."""

    def __init__(self, turns: LoopTurns) -> None:
        self._turns = turns
        self._waiting: deque[Callable[[], None]] = deque()

    def put(self, start: Callable[[], None]) -> None:
        self._waiting.append(start)
        if len(self._waiting) == 1:
            self._turns.wait(self)

    def take_turn(self) -> float:
        clock = self._turns.clock
        end, begun = clock() + TURN_SECONDS, 0
        try:
            while begun < len(self._waiting) and (not begun or clock() < end):
                begun += 1
                self._waiting[begun - 1]()
        finally:
            for _ in range(begun):
                self._waiting.popleft()
            if self._waiting:
                self._turns.wait(self)
        return 0.0


FRAMES_A_SECOND = 1000
FRAMES_AT_ONCE = 64
"""Frames after which the connection waits for a turn, once all frames of the last read are counted."""


class ReadPacing:
    """Pauses reading a WebSocket connection on request of its session, or while it sends too many control frames.

    The session paces commands. Pings, pongs and fragments are not commands but cost work too: a connection that sends many of
    them is read a little at a time, in turns, and rests once it is over the rate.
    """

    __slots__ = ("_frames", "_held", "_paced_until", "_resting", "_transport", "_turns")

    def __init__(self, transport: asyncio.Transport, turns: LoopTurns) -> None:
        self._transport = transport
        self._turns = turns
        self._held = False
        self._resting = False
        self._frames = 0
        self._paced_until = 0.0

    @property
    def stopped(self) -> bool:
        """The connection is not read for now."""
        return self._held or self._resting

    def hold(self, hold: bool) -> None:
        self._held = hold
        self._apply()

    def count(self) -> None:
        """Count a frame that is not a command."""
        self._frames += 1
        if self._frames == FRAMES_AT_ONCE:
            self._resting = True
            self._apply()
            asyncio.get_running_loop().call_soon(self._rest)

    def _rest(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        # What a second allows may come at once.
        self._paced_until = max(self._paced_until, now - 1.0) + self._frames / FRAMES_A_SECOND
        self._frames = 0
        if self._paced_until > now:
            loop.call_at(self._paced_until, self._turns.wait, self)
        else:
            self._turns.wait(self)

    def take_turn(self) -> float:
        self._resting = False
        self._apply()
        return 0.0

    def _apply(self) -> None:
        if self._transport.is_closing():
            return
        if self._held or self._resting:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

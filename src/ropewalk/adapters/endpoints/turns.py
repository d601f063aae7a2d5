"""Turns at work that senders can make us do in large amounts: one of them in a turn of the event loop, however many wait.

So what many do at once holds the event loop no longer than what one does, and everybody else is served in between.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

BURST_SECONDS = 0.05
"""How much of the time that turns ask for may be saved up: what timers are late by is made good, and not much more."""

A_TURN = 0.001
"""Seconds after which who has more to do should wait for another turn. All who work without one share as much."""

LITTLE = 0.0001
"""Seconds of work that nobody waits for: whoever has little to do must not wait for those who have much."""


class Waiting(Protocol):
    def take_turn(self) -> float:
        """Do a small piece. Returns for how many seconds the others have to wait after it: what such work may cost all told."""


class LoopTurns:
    """First come, first served. Who has more to do waits again, behind the others. What can be done in the time that is `left`
    needs no turn, if it is told afterwards. `clock` tells how long work takes: that of uvloop stands still meanwhile."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._waiting: deque[Waiting] = deque()
        self._free_at = 0.0
        self._worked = 0.0

    @property
    def left(self) -> float:
        """Seconds that may be worked without a turn until the event loop has served everybody else. Not above 0: others have
        worked that long already."""
        return A_TURN - self._worked

    def worked(self, seconds: float) -> None:
        """Somebody did, without a turn."""
        if seconds > LITTLE:  # most do not, and cost the event loop nothing more
            if not self._worked:
                asyncio.get_running_loop().call_soon(self._begin_anew)
            self._worked += seconds

    def _begin_anew(self) -> None:
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

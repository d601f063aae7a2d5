"""Pauses reading a WebSocket connection while its session asks for it, or while it sends too many frames.

Commands are paced by the session. Pings, pongs and fragments are not commands but cost work too: a connection
that sends many of them is read a little at a time, in turn with others that do, and rests once it is past the rate.
"""

import asyncio

from ropewalk.adapters.endpoints.turns import LoopTurns

FRAMES_A_SECOND = 1000
FRAMES_AT_ONCE = 64
"""Frames after which the connection waits for a turn, once all frames of the last read are counted."""


class ReadPacing:
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

"""Whether a WebSocket connection is read: not while its session asks to wait, nor while it sends too many frames.

Commands are paced by the session. Pings, pongs and fragments are no commands, and each costs work all the same: a connection
that sends more of them than it may rests until it is back within the rate.
"""

import asyncio

FRAMES_A_SECOND = 1000


class Reading:
    __slots__ = ("_frames", "_held", "_resting", "_second", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._held = False
        self._resting = False
        self._frames = 0
        self._second = 0

    def hold(self, hold: bool) -> None:
        self._held = hold
        self._apply()

    def count(self) -> None:
        """A frame that is no command has come."""
        loop = asyncio.get_running_loop()
        if not self._resting and self._second != (second := int(loop.time())):
            self._second, self._frames = second, 0
        self._frames += 1
        if self._frames > FRAMES_A_SECOND and not self._resting:
            self._resting = True
            self._apply()
            loop.call_soon(self._rest)  # once all that was read is counted

    def _rest(self) -> None:
        asyncio.get_running_loop().call_later(self._frames / FRAMES_A_SECOND, self._go_on)

    def _go_on(self) -> None:
        self._resting = False
        self._apply()

    def _apply(self) -> None:
        if self._transport.is_closing():
            return
        if self._held or self._resting:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

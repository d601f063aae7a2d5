"""A connection as the session uses it, and its keepalive: a connection that is silent for two ping intervals is cut."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from ropewalk.client.errors import Unreachable

MAX_SILENT_CHECKS = 4
"""Checks without received data, two per ping interval, until a connection counts as lost."""


class ClientLink(Protocol):
    """`received`: data has arrived since this was set to False. `writable`: `drain` would not wait."""

    received: bool

    @property
    def reading(self) -> bool: ...
    @property
    def writable(self) -> bool: ...

    def read(self, reading: bool) -> None:
        """Start or stop reading."""

    def write(self, data: bytes) -> None:
        """Never waits."""

    async def drain(self) -> None:
        """Wait until most written data is sent. May raise Unreachable if the connection is lost."""

    async def run(self) -> None:
        """Returns after `leave`. Raises Unreachable if the connection is lost."""

    def leave(self) -> None:
        """Receive nothing more."""

    async def close(self) -> None:
        """Send what was written, within a limited time."""

    def cut(self) -> None:
        """Abort, like a network failure."""


class Dialer(Protocol):
    @property
    def url(self) -> str: ...
    @property
    def hint(self) -> str:
        """What to try if the server closes the connection before its welcome."""

    async def dial(self, receive: Callable[[bytes], None], sid: str, token: str) -> ClientLink:
        """`receive` gets all data. Raises Unreachable."""


class Keepalive:
    """Watches one connection until `stop`.

    Args:
        link: The connection.
        interval: Seconds between two pings. None: learned from the server's pings.
        ping: Sends a ping to a silent server, if pings are the client's duty.
        lost: Called with the reason before the connection is cut.
    """

    def __init__(
        self, link: ClientLink, interval: float | None, ping: Callable[[], None] | None, lost: Callable[[Unreachable], None]
    ) -> None:
        self._link = link
        self.interval = interval or 0.0
        self._ping = ping
        self._lost = lost
        self._last_ping = 0.0
        self._silent = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self.interval and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.interval / 2, self.check)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def pinged(self, timestamp: float) -> None:
        """The server's timestamps count, not the time of arrival: a slow reader must not extend the interval."""
        if self._last_ping:
            self.interval = max(self.interval, timestamp - self._last_ping)
            self.start()
        self._last_ping = timestamp

    def check(self) -> None:
        link = self._link
        self._silent = 0 if link.received or not link.reading else self._silent + 1
        link.received = False
        if self._silent >= MAX_SILENT_CHECKS:
            self._lost(Unreachable(f"the server was silent for {2 * self.interval:g} seconds"))
            link.cut()
            return
        if self._silent and self._ping is not None:
            self._ping()
        self._timer = None
        self.start()

"""Whether the other end of a connection over TCP is still there: a server that says nothing is asked, and one that does not
answer either is gone."""

import asyncio
from collections.abc import Callable

from ropewalk.client.broky_link import BrokyLink
from ropewalk.client.errors import Unreachable

SILENT_TICKS = 4
"""Half ping intervals without a word after which a connection counts as lost."""


class LinkWatch:
    """Of one connection, until that is closed. `ask` sends a ping, `gone` is told that nobody is there."""

    def __init__(self, link: BrokyLink, interval: float, ask: Callable[[], None], gone: Callable[[Unreachable], None]) -> None:
        self._link = link
        self._interval = interval
        self._ask = ask
        self._gone = gone
        self._silent = 0

    def look(self) -> None:
        """Now, and again after each half interval."""
        link = self._link
        if link.closed.done():
            return
        self._silent = 0 if link.heard or not link.reads else self._silent + 1
        link.heard = False
        if self._silent >= SILENT_TICKS:
            self._gone(Unreachable(f"the server was silent for {SILENT_TICKS / 2 * self._interval:g} seconds"))
            link.cut()
            return
        if self._silent:
            self._ask()
        asyncio.get_running_loop().call_later(self._interval / 2, self.look)

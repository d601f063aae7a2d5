"""A connection as picows gets it: without the socket, of which it would set and read options that are set or not wanted.

With uvloop each option costs a socket object of its own. A Unix socket does not even have them.
"""

import asyncio
from typing import Any


class PicowsTransport:
    """Stands for its own socket. Everything else is the real `transport`'s own."""

    __slots__ = ("transport",)

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else self.transport.get_extra_info(name, default)

    def fileno(self) -> int:
        number: int = self.transport.get_extra_info("socket").fileno()
        return number

    def setsockopt(self, *args: int) -> None:
        """Not set: `TCP_NODELAY` is by the event loop."""

    def getsockopt(self, *args: int) -> int:
        return 0  # picows only tells its log, which does not say it

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

"""A connection as picows gets it: without the socket, of which it would set and read options that are set or not wanted.

With uvloop each option costs a socket object of its own. A Unix socket does not even have them.
"""

import asyncio
from typing import Any


class PicowsTransport:
    """Stands for its own socket. Everything else is the real `transport`'s own."""

    __slots__ = ("get_write_buffer_size", "number", "transport", "write")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.number: int = transport.get_extra_info("socket").fileno()
        self.write = transport.write
        self.get_write_buffer_size = transport.get_write_buffer_size

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The addresses it would only tell its log, which does not say them."""
        if name == "socket":
            return self
        return self.transport.get_extra_info(name, default) if name == "ssl_object" else None

    def fileno(self) -> int:
        return self.number

    def setsockopt(self, *args: int) -> None:
        """Not set: `TCP_NODELAY` is by the event loop."""

    def getsockopt(self, *args: int) -> int:
        return 0  # for the log, too

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

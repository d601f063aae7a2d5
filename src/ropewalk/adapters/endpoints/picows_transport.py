"""A connection as picows gets it: it can neither set options of the socket nor write the answer to an upgrade by itself.

Options are set already, or not wanted; with uvloop each costs a socket object of its own, and a Unix socket does not even
have them. A write of its own for the answer costs as much as all the rest of the upgrade.
"""

import asyncio
from http import HTTPStatus
from typing import Any, cast

from multidict import CIMultiDict
from picows import WSUpgradeResponse


class PicowsTransport:
    """Stands for its own socket. Everything else is the real `transport`'s own."""

    __slots__ = ("get_write_buffer_size", "transport", "write")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.write = transport.write
        self.get_write_buffer_size = transport.get_write_buffer_size

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The addresses it would only tell its log, which does not say them."""
        if name == "socket":
            return self
        return self.transport.get_extra_info(name, default) if name == "ssl_object" else None

    def fileno(self) -> int:
        """None that could be written to: so picows, too, writes to the transport alone."""
        return -1

    def setsockopt(self, *args: int) -> None:
        """Not set: `TCP_NODELAY` is by the event loop."""

    def getsockopt(self, *args: int) -> int:
        return 0  # for the log, too

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


class SwitchingProtocols(WSUpgradeResponse):
    """The answer to an upgrade that is granted. Picows is given nothing to write: the connection writes `head` itself, together
    with what its session says first."""

    __slots__ = ("_subprotocol", "head")

    def __init__(self, subprotocol: str | None) -> None:
        self.status = HTTPStatus.SWITCHING_PROTOCOLS
        self.headers = cast(CIMultiDict[str], {})  # picows puts one in
        self._subprotocol = subprotocol
        self.head = b""

    def to_bytes(self) -> bytearray:
        chosen = b"Sec-WebSocket-Protocol: %b\r\n" % self._subprotocol.encode() if self._subprotocol else b""
        accept = self.headers.pop("Sec-WebSocket-Accept").encode()
        self.head = _SWITCHING % (chosen, accept)
        return bytearray()


_SWITCHING = (
    b"HTTP/1.1 101 Switching Protocols\r\n%bConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %b\r\n\r\n"
)

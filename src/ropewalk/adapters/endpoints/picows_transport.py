"""Adapts a transport for picows, so that it neither sets socket options nor writes the response to an upgrade.

The options are already set or unwanted; with uvloop each call creates a socket object, and Unix sockets do not support them. A
separate write of the response would cost as much as the rest of the upgrade.
"""

import asyncio
from http import HTTPStatus
from typing import Any, cast

from multidict import CIMultiDict
from picows import WSUpgradeResponse


class PicowsTransport:
    """Stands for its own socket. All other attributes are those of `transport`."""

    __slots__ = ("get_write_buffer_size", "transport", "write")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.write = transport.write
        self.get_write_buffer_size = transport.get_write_buffer_size

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Picows uses the addresses only for its log, which is disabled."""
        if name == "socket":
            return self
        return self.transport.get_extra_info(name, default) if name == "ssl_object" else None

    def fileno(self) -> int:
        """Invalid, so that picows writes to the transport."""
        return -1

    def setsockopt(self, *args: int) -> None:
        """Does nothing: the event loop sets `TCP_NODELAY`."""

    def getsockopt(self, *args: int) -> int:
        return 0  # only for the log

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


class SwitchingProtocols(WSUpgradeResponse):
    """The response to an accepted upgrade. Picows writes nothing: the connection writes `head` together with the first messages
    of its session."""

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

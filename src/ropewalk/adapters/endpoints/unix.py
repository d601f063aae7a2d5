"""A Unix socket connection for picows, which sets TCP options that a Unix socket does not have."""

import asyncio
import socket
from typing import Any


class _SocketWithoutTcp:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def setsockopt(self, level: int, *args: Any) -> None:
        if level != socket.IPPROTO_TCP:
            self._sock.setsockopt(level, *args)

    def getsockopt(self, level: int, *args: Any) -> Any:
        return 0 if level == socket.IPPROTO_TCP else self._sock.getsockopt(level, *args)

    def fileno(self) -> int:
        return self._sock.fileno()


class UnixTransport:
    """Everything but the socket is the real transport's own."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._sock = _SocketWithoutTcp(transport.get_extra_info("socket"))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._sock if name == "socket" else self._transport.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

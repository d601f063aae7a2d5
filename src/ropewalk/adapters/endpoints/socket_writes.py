"""Writes to sockets: direct ones that bypass the event loop, and the number of bytes that the peer has not received.

Unreceived bytes are counted in this process and in the kernel. The kernel accepts more only when much of its buffer, which may
be megabytes, is free. If only the process's buffer were watched, a slow but steady reader would look stalled.
"""

import asyncio
import fcntl
import socket
import sys
import termios
from collections.abc import Callable

from ropewalk.model.refusals import Refusal


class SocketWrites:
    """Implements `DirectWrites`.

    `sock` must be the object that `transport` was created from: it is closed with the transport, so nothing is sent to another
    connection that reuses its descriptor. With a limit of 0 the transport reports any buffered byte.
    """

    __slots__ = ("_transport", "send")

    def __init__(self, sock: socket.socket, transport: asyncio.Transport) -> None:
        self.send = sock.send
        self._transport = transport
        transport.set_write_buffer_limits(0)

    def end(self) -> None:
        self._transport.set_write_buffer_limits()


def unsent_bytes(transport: asyncio.Transport) -> int:
    return transport.get_write_buffer_size() + _in_kernel(transport)


def _in_kernel(transport: asyncio.Transport) -> int:
    """0 if the system does not report it."""
    sock = transport.get_extra_info("socket")
    answer = bytearray(4)
    try:
        fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, answer)
    except (OSError, ValueError):  # not for sockets on this system, or closed meanwhile
        return 0
    return int.from_bytes(answer, sys.byteorder)


class WriteWatch:
    """Watches a peer that reads more slowly than it is written to.

    Args:
        timeout: seconds after which `give_up` is called, if the peer has taken nothing meanwhile.
    """

    __slots__ = ("_drained", "_give_up", "_timeout", "_timer", "_transport", "_unsent")

    def __init__(self, transport: asyncio.Transport, timeout: float, give_up: Callable[[Refusal], None]) -> None:
        self._transport = transport
        self._timeout = timeout
        self._give_up = give_up
        loop = asyncio.get_running_loop()
        self._drained = loop.create_future()
        self._unsent = unsent_bytes(transport)
        self._timer = loop.call_later(timeout, self._check)

    async def drained(self) -> None:
        """Returns when the peer has caught up, or is gone."""
        await asyncio.shield(self._drained)

    def end(self) -> None:
        """The peer has caught up, or is gone."""
        self._timer.cancel()
        self._drained.set_result(None)

    def _check(self) -> None:
        unsent = unsent_bytes(self._transport)
        if unsent < self._unsent:
            self._unsent = unsent
            self._timer = asyncio.get_running_loop().call_later(self._timeout, self._check)
        else:
            self._give_up(Refusal.WRITE_TIMEOUT)

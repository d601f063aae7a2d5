"""Deliveries straight to the socket of a connection, without what an event loop does for each write."""

import asyncio
import socket


class SocketWrites:
    """Implements `DirectWrites`. `sock` is the object that `transport` was made of: it ends with the transport, so that nothing
    is ever sent to somebody else who has got its number. With its limit at 0 the transport keeps nothing back for later."""

    __slots__ = ("_transport", "send")

    def __init__(self, sock: socket.socket, transport: asyncio.Transport) -> None:
        self.send = sock.send
        self._transport = transport
        transport.set_write_buffer_limits(0)

    def end(self) -> None:
        self._transport.set_write_buffer_limits()

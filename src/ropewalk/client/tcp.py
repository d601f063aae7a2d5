"""A TCP connection to the server, with or without TLS."""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from msgspec import Struct

from ropewalk.client.addresses import TcpAddress
from ropewalk.client.errors import Unreachable
from ropewalk.client.tls import connection_error

WRITE_BUFFER_BYTES = 256 * 1024
CLOSE_SECONDS = 1.0
"""Time to send what was written, and over TLS to wait for the server's end, before a closed connection is aborted."""


class TcpLink(asyncio.Protocol):
    """Received data is passed on at once, without a task in between: a burst wakes its readers once."""

    def __init__(self, url: str, receive: Callable[[bytes], None]) -> None:
        self.received = False
        self.reading = True
        self._url = url
        self._receive = receive
        self._left = False
        self._transport: asyncio.Transport | None = None
        self._done = asyncio.Event()
        self._disconnected = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        self.received = True
        if not self._left:
            self._receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._may_write.set()
        self._done.set()
        self._disconnected.set()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    @property
    def writable(self) -> bool:
        return self._may_write.is_set()

    async def drain(self) -> None:
        await self._may_write.wait()

    def write(self, data: bytes) -> None:
        """Ignored if the connection is closing: uvloop raises then, and asyncio logs."""
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(data)

    def read(self, reading: bool) -> None:
        assert self._transport is not None
        if reading is not self.reading and not self._transport.is_closing():
            self.reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    async def run(self) -> None:
        """Until the connection is lost or left. Raises Unreachable."""
        await self._done.wait()
        if not self._left:
            raise Unreachable(f"{self._url} closed the connection")

    def leave(self) -> None:
        """Receive nothing more. What was written is still sent."""
        self._left = True
        self._done.set()
        if self._transport is not None:
            self._transport.close()

    async def close(self) -> None:
        self.leave()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._disconnected.wait()
        except TimeoutError:
            self.cut()
            await self._disconnected.wait()

    def cut(self) -> None:
        """Abort the connection, like a network failure."""
        if self._transport is not None:
            self._transport.abort()


class TcpDialer(Struct, frozen=True):
    address: TcpAddress
    tls: ssl.SSLContext | None
    timeout: float

    @property
    def url(self) -> str:
        return self.address.url

    @property
    def hint(self) -> str:
        return self.address.hint

    async def dial(self, receive: Callable[[bytes], None], sid: str, token: str) -> TcpLink:
        """The token is in the first frame. Raises Unreachable."""
        address = self.address
        try:
            async with asyncio.timeout(self.timeout):
                loop = asyncio.get_running_loop()
                _, link = await loop.create_connection(
                    lambda: TcpLink(self.url, receive), address.host, address.port, ssl=self.tls
                )
                return link
        except TimeoutError:
            raise Unreachable(f"{self.url} did not answer within {self.timeout:g} seconds") from None
        except ConnectionResetError as error:
            cause = error if self.tls is None else ssl.SSLEOFError()
            raise connection_error(self.url, cause, hint=address.hint) from error
        except OSError as error:
            raise connection_error(self.url, error, hint=address.hint) from error

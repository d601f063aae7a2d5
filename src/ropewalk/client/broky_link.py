"""One TCP connection to the server, with or without TLS. Bytes in, bytes out; whatever the library raises is `Unreachable`."""

import asyncio
import ssl
from typing import Protocol, cast

from ropewalk.client.addresses import TcpAddress
from ropewalk.client.errors import CertificateUntrusted, TlsFailed, Unreachable

WRITE_BUFFER = 256 * 1024
"""Bytes that wait for the network before whoever sends has to wait too."""


class BrokyLinkOwner(Protocol):
    """What a link tells."""

    def arrived(self, data: bytes) -> None: ...
    def writing(self, possible: bool) -> None: ...


class BrokyLink(asyncio.Protocol):
    """`heard`: something came since it was last set to False. `closed` is done once the connection is gone."""

    def __init__(self, owner: BrokyLinkOwner) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self.heard = True
        self.reads = True
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._disconnected = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER)

    def data_received(self, data: bytes) -> None:
        self.heard = True
        if not self.closed.done():
            self._owner.arrived(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disconnected.set()
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        self._owner.writing(possible=False)

    def resume_writing(self) -> None:
        self._owner.writing(possible=True)

    def write(self, data: bytes) -> None:
        """Into nothing if the connection is gone: uvloop would raise, and asyncio complain."""
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(data)

    def pace(self, reads: bool) -> None:
        """Whether to read on."""
        assert self._transport is not None
        if reads is not self.reads and not self._transport.is_closing():
            self.reads = reads
            if reads:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def leave(self) -> None:
        """Nothing more of it is wanted. What was written still goes out."""
        if not self.closed.done():
            self.closed.set_result(None)
        if self._transport is not None:
            self._transport.close()

    async def wait_disconnected(self, seconds: float) -> None:
        """Wait until the socket is closed after `leave`: until what was written is sent, and over TLS until the server has
        confirmed the end. Aborts the connection if that takes longer."""
        try:
            async with asyncio.timeout(seconds):
                await self._disconnected.wait()
        except TimeoutError:
            self.cut()
            await self._disconnected.wait()

    def cut(self) -> None:
        """Break the connection without a word, as a failing network would."""
        if self._transport is not None:
            self._transport.abort()


async def dial(owner: BrokyLinkOwner, address: TcpAddress, tls: ssl.SSLContext | None, seconds: float) -> BrokyLink:
    """Raises Unreachable."""
    try:
        async with asyncio.timeout(seconds):
            loop = asyncio.get_running_loop()
            _, link = await loop.create_connection(lambda: BrokyLink(owner), address.host, address.port, ssl=tls)
            return link
    except ssl.SSLCertVerificationError as error:
        raise CertificateUntrusted(address.url, error) from error
    except TimeoutError:
        raise Unreachable(f"{address.url} did not answer within {seconds:g} seconds") from None
    except ssl.SSLError as error:
        if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError):  # of the network, not of TLS
            raise Unreachable(f"{address.url} closed the connection before TLS began; {address.hint}") from error
        raise TlsFailed(f"{address.url} does not speak TLS as it should: {error.reason or error}; {address.hint}") from error
    except ConnectionResetError as error:
        if tls is None:
            raise Unreachable(f"{address.url} cannot be reached: {error}") from error
        raise Unreachable(f"{address.url} closed the connection before TLS began; {address.hint}") from error
    except OSError as error:
        raise Unreachable(f"{address.url} cannot be reached: {error}") from error

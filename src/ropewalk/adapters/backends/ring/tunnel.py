"""The bus between two nodes of a ring, over a connection to the ordinary port of one of them: bytes of the bus in frames of
Broky.

Invariant: bytes arrive in order, or the connection ends. A side that receives nothing for `SILENT_SECONDS` closes the
connection, because a dead machine does not. Bus traffic begins after both ends have proved the key of the ring
(`core.node_proofs`).
"""

import asyncio
import logging
import ssl
from typing import cast

from ropewalk.adapters.backends.workers.wire import BusConnection
from ropewalk.core.node_proofs import DiallingNode
from ropewalk.model.errors import MalformedFrame, NotProven, Unavailable
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.splitter import MAX_FRAME, FrameSplitter
from ropewalk.protocol.broky.tables import encode, read

logger = logging.getLogger("ropewalk.ring")

PIECE = 1024 * 1024
"""Bytes of the bus in one frame."""

BEAT_SECONDS = 1.0
SILENT_SECONDS = 4.0
CONNECT_SECONDS = 3.0
MAX_GREETING_BYTES = 16 * 1024
"""Size of a frame from a node that has not proved the key yet."""

_NO_NODE = (frames.Reason.UNAUTHORIZED, frames.Reason.FORBIDDEN, frames.Reason.NOT_READY)
"""Reasons of a port that takes the node for a client."""

_PING, _PONG = encode(frames.Ping()), encode(frames.Pong())


class TunnelTransport:
    """The transport of a `BusConnection`. The writes of one tick become one frame."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self.abort = transport.abort
        self.set_write_buffer_limits = transport.set_write_buffer_limits

    def write(self, data: bytes) -> None:
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(data)
        self._unsent_bytes += len(data)

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes + self._transport.get_write_buffer_size()

    def _flush(self) -> None:
        data = b"".join(self._unsent)
        self._unsent.clear()
        self._unsent_bytes = 0
        if self._transport.is_closing():  # closed in this tick; uvloop raises on a later write
            return
        for begin in range(0, len(data), PIECE):
            self._transport.write(encode(frames.Peer(data[begin : begin + PIECE])))


class Tunnel(asyncio.Protocol):
    """One end of the tunnel. `bus` receives all events of the connection."""

    def __init__(self, bus: BusConnection) -> None:
        self._bus = bus
        self._splitter = FrameSplitter(MAX_FRAME)
        self._beating: asyncio.TimerHandle | None = None

    def begin(self, transport: asyncio.Transport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._heard = self._loop.time()
        self._bus.connection_made(cast(asyncio.Transport, TunnelTransport(transport)))
        self._beat_later()

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        try:
            for frame in self._splitter.feed(data):
                self._take(read(frame))
        except MalformedFrame as mistake:
            logger.error("a node of the ring sent an invalid frame", extra={"reason": mistake.reason})
            self._transport.abort()

    def _take(self, body: frames.Body) -> None:
        match body:
            case frames.Peer(data):
                self._bus.data_received(data)
            case frames.Ping():
                self._write(_PONG)
            case frames.Pong():
                pass
            case _:
                raise MalformedFrame(f"{type(body).__name__} is not for a node of a ring", 1002)

    def pause_writing(self) -> None:
        self._bus.pause_writing()

    def resume_writing(self) -> None:
        self._bus.resume_writing()

    def connection_lost(self, reason: Exception | None) -> None:
        if self._beating is not None:
            self._beating.cancel()
            self._bus.connection_lost(reason)

    def _beat_later(self) -> None:
        self._due = self._loop.time() + BEAT_SECONDS
        self._beating = self._loop.call_at(self._due, self._beat)

    def _beat(self) -> None:
        now = self._loop.time()
        stood_still = now - self._due > BEAT_SECONDS  # this process was suspended: input is not read yet
        if now - self._heard > SILENT_SECONDS and not stood_still:
            logger.warning("a node of the ring has fallen silent; closing the connection")
            self._transport.abort()
            return
        self._write(_PING)
        self._beat_later()

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


class TunnelEntry(Tunnel):
    """The end of the node that connects. It sends a challenge, checks the response, sends its own proof, and waits to be
    welcomed."""

    def __init__(self, bus: BusConnection, proving: DiallingNode) -> None:
        super().__init__(bus)
        self._splitter.limit = MAX_GREETING_BYTES
        self._proving = proving
        self._proved = False
        self._welcomed = False
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, transport)
        self._heard = self._loop.time()
        self._transport.write(encode(frames.Peer(self._proving.challenge)))

    def connection_lost(self, reason: Exception | None) -> None:
        self._fail("the connection ended before a welcome")
        super().connection_lost(reason)

    def _take(self, body: frames.Body) -> None:
        if self._welcomed:
            super()._take(body)
        elif isinstance(body, frames.Peer) and not self._proved:
            self._prove(body.data)
        elif isinstance(body, frames.Welcome) and self._proved:
            self._welcomed = True
            self._splitter.limit = MAX_FRAME
            self.begin(self._transport)
            if not self.welcomed.done():
                self.welcomed.set_result(None)
        else:
            self._fail(_refusal(body))
            self._transport.abort()

    def _prove(self, response: bytes) -> None:
        try:
            proof = self._proving.prove(response)
        except NotProven as error:
            self._fail(str(error))
            self._transport.abort()
            return
        self._proved = True
        self._write(encode(frames.Peer(proof)))

    def _fail(self, reason: str) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(Unavailable(reason))
            self.welcomed.exception()  # the caller may have given up


def _refusal(body: frames.Body) -> str:
    if isinstance(body, frames.Error) and body.reason not in _NO_NODE:
        return f"it refuses this node: {body.text}"
    said = f" ({body.text})" if isinstance(body, frames.Error) else ""
    return f"it does not take this server for a node of its ring{said}: do both have --ring and the same --secret?"


async def enter(bus: BusConnection, address: tuple[str, int], tls: ssl.SSLContext | None, proving: DiallingNode) -> None:
    """Connect to another node. Returns when both have proved the key of the ring. Raises OSError and `Unavailable`."""
    host, port = address
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            transport, entry = await loop.create_connection(lambda: TunnelEntry(bus, proving), host, port, ssl=tls)
            try:
                await entry.welcomed
            except BaseException:
                transport.abort()
                raise
    except TimeoutError:
        raise Unavailable("no answer in time") from None

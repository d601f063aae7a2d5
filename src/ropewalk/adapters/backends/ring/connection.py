"""A connection between two nodes of a ring: a greeting, in which both ends prove the ring's key, and then the bus.

Invariant: no byte reaches the bus before the proof. All frames are those of the bus. After the greeting each end sends an
empty frame, the heartbeat, every BEAT_SECONDS, and closes a connection on which it receives nothing for SILENT_SECONDS, because
a dead machine does not.
"""

import asyncio
import logging
import ssl
from typing import cast

from ropewalk.adapters.backends.workers.wire import LENGTH_BYTES, BusConnection
from ropewalk.core.node_proofs import DiallingNode
from ropewalk.model.errors import NotProven, Unavailable

logger = logging.getLogger("ropewalk.ring")

BEAT_SECONDS = 1.0
SILENT_SECONDS = 4.0
CONNECT_SECONDS = 3.0
CLOSE_SECONDS = 1.0
"""How long a refused node may take to read the reason."""

MAX_GREETING_BYTES = 16 * 1024
HEARTBEAT = bytes(LENGTH_BYTES)


class NodeGreeting(asyncio.Protocol):
    """The connection until both ends have proved the key. Each end waits for the answer to its last frame."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._changed = asyncio.Event()
        self._refused = False
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            self._received += data
            self._changed.set()

    def connection_lost(self, reason: Exception | None) -> None:
        self._transport, self._ended = None, True
        self._changed.set()

    def send(self, message: bytes) -> None:
        self.write(len(message).to_bytes(LENGTH_BYTES, "little") + message)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def receive(self) -> bytes:
        """The next message. Raises NotProven if it is too long, and `Unavailable` at the end of the connection."""
        received = self._received
        while True:
            length = int.from_bytes(received[:LENGTH_BYTES], "little")
            if length > MAX_GREETING_BYTES:
                raise NotProven(f"malformed greeting of a ring node: a frame of {length} bytes")
            end = LENGTH_BYTES + length
            if len(received) >= end:
                message = bytes(received[LENGTH_BYTES:end])
                del received[:end]
                return message
            if self._ended:
                raise Unavailable("the connection ended before a welcome")
            self._changed.clear()
            await self._changed.wait()

    def detach(self) -> tuple[asyncio.Transport, bytes]:
        """The transport, for the bus, and input that follows the greeting. Raises `Unavailable` if the connection has ended."""
        transport, self._transport = self._transport, None
        if transport is None or transport.is_closing():
            raise Unavailable("the connection ended before a welcome")
        return transport, bytes(self._received)

    async def refuse(self, answer: bytes) -> None:
        """Send a last answer. Further input is discarded, so that no reset destroys the answer."""
        self._refused = True
        self.write(answer)
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                while not self._ended:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self.abort()

    def abort(self) -> None:
        """Does nothing after `detach`."""
        if self._transport is not None:
            self._transport.abort()


class JoinedWrites:
    """The transport of a `BusConnection`. Joins the writes of one tick into one: each costs more than the bytes of a small
    frame, with TLS even more."""

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
        if not self._transport.is_closing():  # uvloop raises on a write after the end
            self._transport.write(data)


class NodeConnection(asyncio.Protocol):
    """The connection after the greeting. `bus` receives all events."""

    def __init__(self, bus: BusConnection) -> None:
        self._bus = bus

    def begin(self, transport: asyncio.Transport, ahead: bytes) -> None:
        """`ahead`: input that was already read."""
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        transport.set_protocol(self)
        self._bus.connection_made(cast(asyncio.Transport, JoinedWrites(transport)))
        self._heard = self._loop.time()
        self._beat_later()
        if ahead:
            self.data_received(ahead)

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        self._bus.data_received(data)

    def pause_writing(self) -> None:
        self._bus.pause_writing()

    def resume_writing(self) -> None:
        self._bus.resume_writing()

    def connection_lost(self, reason: Exception | None) -> None:
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
        if not self._transport.is_closing():
            self._transport.write(HEARTBEAT)
        self._beat_later()


async def dial(bus: BusConnection, address: tuple[str, int], tls: ssl.SSLContext | None, proving: DiallingNode) -> None:
    """Connect to another node. Returns when both have proved the key of the ring. Raises OSError and `Unavailable`."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, greeting = await loop.create_connection(NodeGreeting, *address, ssl=tls)
            try:
                greeting.send(proving.challenge)
                greeting.send(proving.prove(await greeting.receive()))
                proving.require_welcome(await greeting.receive())
                transport, ahead = greeting.detach()
            finally:
                greeting.abort()
    except TimeoutError:
        raise Unavailable(
            "no answer in time; --ring must list the ports for nodes (--ring_port), and all nodes must run the same release"
        ) from None
    NodeConnection(bus).begin(transport, ahead)

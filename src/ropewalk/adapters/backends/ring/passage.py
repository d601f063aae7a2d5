"""How other nodes of a ring reach the store process of a node with workers: at the port, one of the workers takes them, and
passes on what they say, byte for byte.

Invariant: what comes at one end goes out at the other, no faster than that takes it, and both end together. Worker and store
add nothing: the two ends of the bus hear each other's beats, and notice when the other stands still.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from ropewalk.adapters.backends.ring.tunnel import Tunnel
from ropewalk.adapters.backends.workers.wire import BusConnection
from ropewalk.core.signatures import matches

logger = logging.getLogger("ropewalk.ring")


class PassageEnd(asyncio.Protocol):
    """One of its two ends, which are to be joined."""

    def __init__(self, transport: asyncio.Transport | None = None) -> None:
        self._transport = transport
        self._other: PassageEnd | None = None
        self.lost = False

    def join(self, other: "PassageEnd") -> None:
        self._other, other._other = other, self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._other is not None:
            self._other.write(data)

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.read(False)

    def resume_writing(self) -> None:
        if self._other is not None:
            self._other.read(True)

    def connection_lost(self, reason: Exception | None) -> None:
        self.lost = True
        if self._other is not None:
            self._other.close()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def read(self, wanted: bool) -> None:
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class WorkerGate:
    """The gate of a worker. `token` is what nodes of this ring know each other by, `name` that of this node; `path` is where
    its store process takes them."""

    def __init__(self, name: str, token: str, path: str) -> None:
        self.name = name
        self._token = token
        self._path = path
        self._opening: set[asyncio.Task[None]] = set()

    def knows(self, token: str) -> bool:
        return matches(token, self._token)

    def take_over(self, transport: asyncio.Transport) -> None:
        node = PassageEnd(transport)
        transport.set_protocol(node)
        node.read(False)
        task = asyncio.get_running_loop().create_task(self._open(node))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, node: PassageEnd) -> None:
        store = PassageEnd()
        node.join(store)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: store, self._path)
        except OSError as error:
            logger.debug("a node of the ring comes, and the store process is away", extra={"reason": str(error)})
            node.close()
            return
        if node.lost:
            store.close()
        elif store.lost:
            node.close()
        else:
            node.read(True)


class _PassedTunnel(Tunnel):
    """The end of a store process: whoever comes was welcomed by a worker."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.begin(cast(asyncio.Transport, transport))


class StoreDoor:
    """Where a store process takes nodes that its workers let in. `accept`: one comes."""

    def __init__(self, accept: Callable[[], BusConnection], path: str) -> None:
        self._accept = accept
        self._path = path
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _PassedTunnel(self._accept()), self._path)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

"""How other nodes of a ring reach the store process of a node with workers: a worker takes them at the port, and hands the
connection over to the store.

A connection without TLS is handed over as it is, and nothing of it stays with the worker: it outlives it. Of one with TLS the
worker has the keys. It stays in between, and the store gets the other end of a passage.

Invariant: bytes from one end of a passage go to the other end, no faster than that reads, and both end together. Nothing is
added: the two ends of the bus check each other's heartbeats themselves.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any, cast

from ropewalk.adapters.backends.ring.backend import RingBackend
from ropewalk.adapters.backends.ring.tunnel import Tunnel
from ropewalk.adapters.backends.workers.wire import BusConnection
from ropewalk.core.node_proofs import DialledNode


class NodeIngress:
    """Implements `RingNodes`: accepts connections of other nodes on the ordinary port. `key` is that of the ring."""

    def __init__(self, backend: RingBackend, key: str) -> None:
        self.name = backend.state.me
        self._backend = backend
        self._key = key

    def greet(self) -> DialledNode:
        return DialledNode(self._key, self.name)

    def take_over(self, transport: asyncio.Transport) -> None:
        tunnel = Tunnel(self._backend.accept())
        transport.set_protocol(tunnel)
        tunnel.begin(transport)


logger = logging.getLogger("ropewalk.ring")

LOOK_SECONDS = 0.01
WELCOME_SECONDS = 1.0
"""How often it is looked whether a welcome was sent, and for how long: it mostly is at once."""

_A_NODE = b"node"


class HandoverEnd(asyncio.Protocol):
    """One of its two ends, which are to be joined."""

    def __init__(self, transport: asyncio.Transport | None = None) -> None:
        self._transport = transport
        self._other: HandoverEnd | None = None
        self.lost = False

    def join(self, other: "HandoverEnd") -> None:
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


class WorkerIngress:
    """The gate of a worker. Implements `RingNodes`. `key` is that of the ring, `name` that of this node; `path` is where its
    store process takes connections."""

    def __init__(self, name: str, key: str, path: str) -> None:
        self.name = name
        self._key = key
        self._path = path
        self._under_way: set[asyncio.Task[None]] = set()

    def greet(self) -> DialledNode:
        return DialledNode(self._key, self.name)

    def take_over(self, transport: asyncio.Transport) -> None:
        """Stop reading at once: the store reads the next bytes of the node."""
        node = HandoverEnd(transport)
        transport.set_protocol(node)
        node.read(False)
        secret = transport.get_extra_info("ssl_object") is not None
        self._spawn(self._pass_on(node) if secret else self._hand_over(node, transport))

    async def _hand_over(self, node: HandoverEnd, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WELCOME_SECONDS
        while transport.get_write_buffer_size() and loop.time() < deadline:  # noqa: ASYNC110 - a transport has no event for it
            await asyncio.sleep(LOOK_SECONDS)
        if not node.lost:
            if not transport.get_write_buffer_size():
                self._send(cast(socket.socket, transport.get_extra_info("socket")).fileno())
            transport.abort()

    async def _pass_on(self, node: HandoverEnd) -> None:
        mine, for_store = socket.socketpair()
        store = HandoverEnd()
        node.join(store)
        with for_store:
            if not self._send(for_store.fileno()):
                mine.close()
                node.close()
                return
        await asyncio.get_running_loop().create_unix_connection(lambda: store, sock=mine)
        if node.lost:
            store.close()
        else:
            node.read(True)

    def _send(self, descriptor: int) -> bool:
        """A node that is not taken tries again."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
            way.setblocking(False)
            try:
                way.connect(self._path)
                socket.send_fds(way, [_A_NODE], [descriptor])
            except OSError as error:
                logger.debug("a node of the ring comes, and the store process is away", extra={"reason": str(error)})
                return False
        return True

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)


class _WelcomedTunnel(Tunnel):
    """The end of a store process: a worker has verified the node."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.begin(cast(asyncio.Transport, transport))


class FdReceiver:
    """Where a store process takes nodes that its workers let in. `accept`: one comes."""

    def __init__(self, accept: Callable[[], BusConnection], path: str) -> None:
        self._accept = accept
        self._path = path
        self._socket: socket.socket | None = None
        self._entering: set[asyncio.Task[object]] = set()

    def start(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)  # of a store process that was here before
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(self._path)
        asyncio.get_running_loop().add_reader(self._socket, self._receive, self._socket)

    def stop(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _receive(self, way: socket.socket) -> None:
        try:
            _, descriptors, _, _ = socket.recv_fds(way, len(_A_NODE), 1)
        except BlockingIOError:
            return
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
            task = asyncio.get_running_loop().create_task(self._enter(socket.socket(fileno=descriptor)))
            self._entering.add(task)
            task.add_done_callback(self._entering.discard)

    async def _enter(self, node: socket.socket) -> None:
        node.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: _WelcomedTunnel(self._accept()), node)
        except OSError as error:  # it has gone meanwhile
            node.close()
            logger.debug("a node of the ring did not enter", extra={"reason": str(error)})

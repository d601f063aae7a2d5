"""The port of a node for the other nodes of its ring.

Invariant: a connection reaches the store after it has proved the ring's key. Until then it is one of a bounded number, and for
PROOF_SECONDS at most. A stranger that does not greet as a node gets no answer.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Protocol

from ropewalk.adapters.backends.ring.connection import NodeConnection, NodeGreeting
from ropewalk.adapters.backends.workers.wire import LENGTH_BYTES, BusConnection
from ropewalk.core.node_proofs import WELCOME, DialledNode, encode_rejection, is_greeting
from ropewalk.model.errors import NotProven, Unavailable
from ropewalk.model.refusals import Refusal
from ropewalk.protocol.broky.codec import error
from ropewalk.protocol.broky.frames import Reason
from ropewalk.protocol.broky.tables import IDENTIFIER

logger = logging.getLogger("ropewalk.ring")

PROOF_SECONDS = 5.0
"""From the accept to the proof, with the TLS handshake."""

SCARCITY_PAUSE = 0.5
"""How long accepting rests when the system has no file descriptors or memory."""


class NodeAdmission(Protocol):
    """The limits of the process."""

    def is_crowded(self, unproven: int) -> bool:
        """Whether the oldest of so many connections must make room."""

    def count(self, why: Refusal, **numbers: int) -> None: ...


class RingPort:
    """`start`, then `stop`. `tls` may be replaced at any time, for connections to come.

    Args:
        accept: returns the store's end of a connection that has proved the key.
        greet: returns the verifier for a new connection.
    """

    def __init__(
        self,
        accept: Callable[[], BusConnection],
        greet: Callable[[], DialledNode],
        admission: NodeAdmission,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.tls = tls
        self._accept = accept
        self._greet = greet
        self._admission = admission
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._unproven: dict[asyncio.Task[None], None] = {}  # oldest first
        self._dropped: set[asyncio.Task[None]] = set()

    def start(self, sockets: Sequence[socket.socket]) -> None:
        """`sockets`: listen, and are closed by `stop`."""
        self._sockets = list(sockets)
        loop = asyncio.get_running_loop()
        self._accepting = [loop.create_task(self._accept_from(sock)) for sock in sockets]
        for sock in sockets:
            host, port = sock.getsockname()[:2]
            logger.info("listening for the other nodes of the ring", extra={"host": host, "port": port})

    async def stop(self) -> None:
        """Connections that have proved the key stay open."""
        tasks = [*self._accepting, *self._unproven, *self._dropped]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for sock in self._sockets:
            sock.close()

    async def _accept_from(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listening)
            except ConnectionError:
                continue
            except OSError:
                self._admission.count(Refusal.DESCRIPTORS)
                await asyncio.sleep(SCARCITY_PAUSE)
                continue
            task = loop.create_task(self._enter(sock))
            self._unproven[task] = None
            task.add_done_callback(self._ended)
            if self._admission.is_crowded(len(self._unproven)):
                self._drop_oldest()
            await asyncio.sleep(0)  # the accept may return at once: others get their turn

    def _drop_oldest(self) -> None:
        oldest = next(iter(self._unproven))
        del self._unproven[oldest]
        self._dropped.add(oldest)
        oldest.cancel()
        self._admission.count(Refusal.HEAD_TIMEOUT)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._unproven.pop(task, None)
        self._dropped.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            logger.error("a connection of a node failed", exc_info=failure)

    async def _enter(self, sock: socket.socket) -> None:
        greeting = NodeGreeting()
        try:
            async with asyncio.timeout(PROOF_SECONDS):
                await self._connect(greeting, sock)
                await self._verify(greeting)
        except TimeoutError:
            self._admission.count(Refusal.HEAD_TIMEOUT)
        except OSError as failure:  # an SSLError is one too
            logger.debug("connection lost in its handshake", extra={"reason": str(failure)})
            self._admission.count(Refusal.HANDSHAKE)
        except Unavailable as lost:
            logger.debug("connection lost in its greeting", extra={"reason": str(lost)})
        finally:
            greeting.abort()

    async def _connect(self, greeting: NodeGreeting, sock: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: greeting, sock, ssl=self.tls)
        except BaseException:
            sock.close()
            raise

    async def _verify(self, greeting: NodeGreeting) -> None:
        node = self._greet()
        challenge = b""
        try:
            challenge = await greeting.receive()
            greeting.send(node.respond(challenge))
            node.verify(await greeting.receive())
        except NotProven as mistake:
            self._admission.count(Refusal.BAD_KEY)
            if is_greeting(challenge):
                await greeting.refuse(_refusal(challenge, str(mistake)))
            return
        greeting.send(WELCOME)
        transport, ahead = greeting.detach()
        try:
            NodeConnection(self._accept()).begin(transport, ahead)
        except BaseException:
            transport.abort()
            raise


def _refusal(challenge: bytes, reason: str) -> bytes:
    """Older nodes greet in frames of Broky, and read only these."""
    if challenge.startswith(IDENTIFIER, LENGTH_BYTES):
        return error(Reason.UNKNOWN_VERSION, reason)
    rejection = encode_rejection(reason)
    return len(rejection).to_bytes(LENGTH_BYTES, "little") + rejection

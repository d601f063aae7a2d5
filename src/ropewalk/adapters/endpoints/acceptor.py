"""Accepts connections on the listening sockets and passes them through the TLS handshake to the protocol detector.

This is our own accept loop instead of the event loop's: it can stop without closing the socket, notices when file
descriptors run out, counts handshakes in progress, and takes a new certificate while it runs.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Sequence

from ropewalk.adapters.endpoints.shared_port import ProtocolDetector, SharedPort
from ropewalk.adapters.endpoints.sockets import Listening
from ropewalk.model.refusals import Refusal

logger = logging.getLogger("ropewalk.server")

AT_ONCE = 16
"""Connections accepted before others get their turn of the event loop."""

HANDSHAKE_SECONDS = 5.0
SCARCITY_PAUSE = 0.5
"""How long accepting rests when the system has no file descriptors or memory; meanwhile connections wait in the queue."""

_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class AcceptedSocket(socket.socket):
    """Its family and type are plain integers. `socket.socket` creates enum members at every access, and the event loop reads
    them several times for a new connection, which costs as much as accepting it."""

    __slots__ = ()
    family = socket.SocketType.family  # type: ignore[assignment]
    type = socket.SocketType.type  # type: ignore[assignment]


class Acceptor:
    """`start`, then `stop`. `tls` may be replaced at any time, for connections to come."""

    def __init__(self, shared_port: SharedPort, sockets: Sequence[Listening], tls: ssl.SSLContext | None) -> None:
        self.tls = tls
        self._shared_port = shared_port
        self._sockets = list(sockets)
        self._entering: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        for listening in self._sockets:
            self._resume(listening)

    def stop(self) -> None:
        """Accept no more connections. The queue of an inherited socket is left to the next process.

        Accepted connections stay open. Repeated calls do nothing."""
        if self._stopped:
            return
        self._stopped = True
        for listening in self._sockets:
            self._loop.remove_reader(listening.sock)
            if not listening.inherited:
                # Closing the socket would reset the connections in its queue.
                while self._accept_one(listening):
                    pass
            listening.close()

    def _resume(self, listening: Listening) -> None:
        if not self._stopped:
            self._loop.add_reader(listening.sock, self._accept, listening)

    def _accept(self, listening: Listening) -> None:
        for _ in range(AT_ONCE):
            if not self._accept_one(listening):
                return

    def _accept_one(self, listening: Listening) -> bool:
        try:
            number, _ = listening.sock._accept()  # type: ignore[attr-defined]  # what `accept` makes a `socket.socket` of
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionAbortedError:
            return True
        except OSError as error:
            if error.errno not in _SCARCE:
                raise
            self._rest(listening)
            return False
        sock = AcceptedSocket(listening.family, socket.SOCK_STREAM, 0, number)
        detector = self._shared_port.detector()
        if self.tls is None:
            self._enter_at_once(detector, sock)
            return True
        entering = self._loop.create_task(self._enter(detector, sock, self.tls))
        detector.accepting = entering
        self._entering.add(entering)
        entering.add_done_callback(self._entering.discard)
        return True

    def _rest(self, listening: Listening) -> None:
        self._shared_port.admission.count(Refusal.DESCRIPTORS, connections=self._shared_port.admission.connections())
        self._loop.remove_reader(listening.sock)
        self._loop.call_later(SCARCITY_PAUSE, self._resume, listening)

    def _enter_at_once(self, detector: ProtocolDetector, sock: socket.socket) -> None:
        """Without TLS, only the event loop's callback to the detector is pending, which needs no task."""
        entering = self._loop.connect_accepted_socket(lambda: detector, sock)
        try:
            entering.send(None)
        except OSError as error:
            self._failed(detector, sock, error)
        else:
            detector.entering, detector.sock = entering, sock

    async def _enter(self, detector: ProtocolDetector, sock: socket.socket, tls: ssl.SSLContext) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: detector, sock, ssl=tls, ssl_handshake_timeout=HANDSHAKE_SECONDS)
        except asyncio.CancelledError:
            detector.finish()
            sock.close()
            raise
        except OSError as error:  # ssl.SSLError and TimeoutError are OSErrors
            self._failed(detector, sock, error)
        finally:
            detector.accepting = None

    def _failed(self, detector: ProtocolDetector, sock: socket.socket, error: OSError) -> None:
        detector.finish()
        sock.close()
        self._shared_port.admission.count(Refusal.HANDSHAKE)
        logger.debug("connection lost in its handshake", extra={"reason": str(error)})

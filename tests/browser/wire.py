"""A TCP proxy between a browser and a server that a test can cut and mend.

A cut resets all connections, as a lost network does: neither side gets a close frame.
"""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Wire:
    def __init__(self, target: str) -> None:
        self._target = _address(target)
        self._whole = True
        self._links: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            self._whole = False
            for link in self._links:
                _reset(link)
            self._links.clear()

    def mend(self, target: str | None = None) -> None:
        """Let connections through again, to another server if one is given."""
        with self._lock:
            self._target = _address(target) if target else self._target
            self._whole = True

    def close(self) -> None:
        self.cut()
        # Shutting down first wakes the thread that is waiting in accept(); closing alone would leave it there.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._join(near)

    def _join(self, near: socket.socket) -> None:
        with self._lock:
            try:
                far = socket.create_connection(self._target) if self._whole else None
            except OSError:
                far = None
            if far is None:
                return _reset(near)
            self._links |= {near, far}
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # one end is gone, and the link with it


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "127.0.0.1", parts.port or 80


def _reset(link: socket.socket) -> None:
    try:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        link.shutdown(socket.SHUT_RD)  # wakes the thread that reads from it
    except OSError:
        pass  # it had ended already
    link.close()


@contextmanager
def wire_to(target: str) -> Iterator[Wire]:
    wire = Wire(target)
    try:
        yield wire
    finally:
        wire.close()

"""One connection of the load to Broky: a blocking socket that greets, subscribes and waits for answers.

Measurements use its socket and move prepared bytes.
"""

import os
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from ropewalk.protocol.broky.frames import Body, Hello, Run, Subscribe, Subscribed, Welcome
from ropewalk.protocol.broky.runs import build_run, decode, encode_run
from ropewalk.protocol.broky.splitter import FrameSplitter
from ropewalk.protocol.broky.tables import encode

Address = tuple[str, int]
TIMEOUT = 60.0

T = TypeVar("T")


def connected(address: Address) -> socket.socket:
    sock = socket.create_connection(address, timeout=TIMEOUT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class End:
    """Welcomed, and subscribed to these keys."""

    def __init__(self, address: Address, keys: Sequence[bytes] = ()) -> None:
        self.sock = connected(address)
        self._splitter = FrameSplitter()
        self._frames: list[bytes] = []
        self.bytes = 0
        self.send(Hello())
        self.expect(Welcome)
        if keys:
            self.send(*(Subscribe(ref, key) for ref, key in enumerate(keys, 1)))
            for _ in keys:
                self.expect(Subscribed)

    def send(self, *bodies: Body) -> None:
        self.sock.sendall(b"".join(map(encoded, bodies)))

    def receive(self) -> Body:
        """The next frame. `bytes` counts them."""
        while not self._frames:
            data = self.sock.recv(262144)
            if not data:
                raise ConnectionError("the server ended a connection of the load")
            self._frames += self._splitter.feed(data)
        frame = self._frames.pop(0)
        self.bytes += len(frame)
        return decode(frame)

    def expect(self, kind: type[T]) -> T:
        body = self.receive()
        if not isinstance(body, kind):
            raise ConnectionError(f"the server said {body} where a {kind.__name__} was due")
        return body

    def close(self) -> None:
        self.sock.close()


def encoded(body: Body) -> bytes:
    return encode_run(body) if isinstance(body, Run) else encode(body)


def encode_push(key: bytes, batch: int, payload: int, first: int = 0, ref: int = 0) -> bytes:
    """A run of messages that are numbered from `first`, each of `payload` bytes."""
    return encode_run(build_run(key, payloads(first, batch, payload), ref))


def payloads(first: int, count: int, payload: int) -> list[bytes]:
    return [b"%0*d" % (payload, number) for number in range(first, first + count)]


def holder(pids: Iterable[int], sock: socket.socket) -> int:
    """Which of these processes has the other end of a connection over loopback: the system knows."""
    ports = [f":{sock.getpeername()[1]:04X}", f":{sock.getsockname()[1]:04X}"]
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file]
    inodes = [row[9] for row in rows if [row[1][-5:], row[2][-5:]] == ports]
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):  # closed since
                if os.readlink(f"/proc/{pid}/fd/{fd}") in wanted:
                    return pid
    raise LookupError("no process of the server has this connection")

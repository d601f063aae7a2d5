"""Many links at once: opening them, cutting them off, and bringing them back.

At most `WINDOW` links are on their way at a time: more would only measure the kernel's retries of refused handshakes.
"""

import select
import socket
import struct
import time
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from benchmarks.load.link import Link, Stage

WINDOW = 256
TIMEOUT = 60.0
# closing with this resets the connection: no goodbye for the server, and no port kept waiting here
ABRUPT = struct.pack("ii", 1, 0)

Address = tuple[str, int]


class Resumed(Struct, frozen=True):
    """What a storm cost. `seconds`: from the first cut until the last client had all that it had missed."""

    seconds: float
    restored: int
    replayed: int


class Crowd:
    """The links of one load process to one server."""

    def __init__(self, address: Address, path: str, stream: str) -> None:
        self._address = address
        self._path = path
        self._stream = stream
        self.links: dict[int, Link] = {}
        self._cut: list[Link] = []
        self._cut_at = 0.0
        self.poll = select.epoll()

    def open(self, count: int, stage: Stage, epoch: str = "", offset: int = 0) -> float:
        """Open so many and wait until each has come to `stage`; how long it took. With an epoch they subscribe with history."""
        started = time.monotonic()
        self._bring([partial(self._connect, "", epoch, offset)] * count, stage)
        return time.monotonic() - started

    def resume(self, epoch: str) -> Resumed:
        """Reconnect all cut connections by session and position."""
        cut, self._cut = self._cut, []
        self._bring([partial(self._connect, link.sid, epoch, link.offset) for link in cut], Stage.SUBSCRIBED)
        seconds = time.monotonic() - self._cut_at
        links = self.links.values()
        return Resumed(seconds, sum(link.restored for link in links), sum(link.replayed for link in links))

    def count_wrong(self, offset: int) -> int:
        """Read on until every link is at `offset`; how often one of them saw an offset that was not the next."""
        deadline = time.monotonic() + TIMEOUT
        while any(link.offset < offset for link in self.links.values()):
            self._receive(deadline)
        return sum(link.errors + (link.offset != offset) for link in self.links.values())

    def cut(self) -> None:
        """End every connection without a goodbye; they may resume."""
        self._cut, self._cut_at = list(self.links.values()), time.monotonic()
        for link in self._cut:
            link.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABRUPT)
            link.sock.close()
        self.links = {}

    def _bring(self, connects: list[Callable[[], Link]], stage: Stage) -> None:
        deadline = time.monotonic() + TIMEOUT
        waiting: set[int] = set()
        while connects or waiting:
            while connects and len(waiting) < WINDOW:
                link = connects.pop()()
                self.links[link.sock.fileno()] = link
                waiting.add(link.sock.fileno())
            waiting.difference_update(fd for fd in self._receive(deadline) if self.links[fd].stage >= stage)

    def _connect(self, sid: str, epoch: str, offset: int) -> Link:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        sock.connect_ex(self._address)
        self.poll.register(sock.fileno(), select.EPOLLOUT)
        return self._link(sock, sid, epoch, offset)

    def _link(self, sock: socket.socket, sid: str, epoch: str, offset: int) -> Link:
        return Link(sock, self._stream, f"{self._path}?sid={sid}" if sid else self._path, epoch, offset)

    def _receive(self, deadline: float) -> list[int]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"some of {len(self.links)} connections did not get what they waited for")
        ready = self.poll.poll(1.0)
        for fd, event in ready:
            if event == select.EPOLLOUT:
                self.links[fd].request()
                self.poll.modify(fd, select.EPOLLIN | select.EPOLLRDHUP)
            else:
                self.links[fd].receive()
        return [fd for fd, _ in ready]

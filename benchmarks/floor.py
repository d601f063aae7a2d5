"""The floor: what the kernel and plain Python can do at best, with no server in between.

A bare process answers upgrades with a constant and then calls `send()` in a loop: same sockets, same bytes, same reader.
"""

import select
import socket
import time

Address = tuple[str, int]
ANSWER = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


class Floor:
    """Lives in a process of its own (see `benchmarks.remote`), as the server does."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._connections: list[socket.socket] = []

    def address(self) -> Address:
        host, port = self._listener.getsockname()
        return host, port

    def accept(self, count: int) -> None:
        """Take `count` connections and answer their upgrades, many at a time as any server does."""
        poll = select.epoll()
        poll.register(self._listener.fileno(), select.EPOLLIN)
        self._listener.setblocking(False)
        arrived: dict[int, socket.socket] = {}
        while len(arrived) < count or len(self._connections) < count:
            for fd, _ in poll.poll():
                if fd != self._listener.fileno():
                    poll.unregister(fd)
                    self._answer(arrived[fd])
                    continue
                while connection := self._accept_one():
                    poll.register(connection.fileno(), select.EPOLLIN)
                    arrived[connection.fileno()] = connection

    def send(self, frames: list[bytes]) -> float:
        """Each frame to each connection, one `send()` a delivery; the time at which the first was sent."""
        sends = [connection.send for connection in self._connections]
        started = time.monotonic()
        for frame in frames:
            for send in sends:
                send(frame)
        return started

    def pace(self, frames: list[bytes], rate: float) -> list[float]:
        """The same at a fixed rate; the times at which each frame was due."""
        first = time.monotonic() + 0.01
        due = [first + index / rate for index in range(len(frames))]
        for moment, frame in zip(due, frames, strict=True):
            time.sleep(max(0.0, moment - time.monotonic()))
            self.send([frame])
        return due

    def close(self) -> None:
        """Let go of all connections."""
        for connection in self._connections:
            connection.close()
        self._connections = []

    def _accept_one(self) -> socket.socket | None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _answer(self, connection: socket.socket) -> None:
        connection.recv(4096)
        connection.send(ANSWER)
        self._connections.append(connection)

"""From producers to one subscriber: sockets of the load, over which frames travel that were made beforehand.

Timed rounds count bytes exactly. A checked round before them decodes the messages.
"""

import select
import socket
import time
from collections import deque
from collections.abc import Sequence

from benchmarks.broky.end import TIMEOUT, End, encode_push, payloads
from ropewalk.protocol.broky.frames import Ping, Pong, Run
from ropewalk.protocol.broky.runs import split_payloads

WINDOW = 512 * 1024
"""Bytes on their way at most: less than what may wait for a connection, and enough to keep any server busy."""

BLOCK = 256 * 1024
"""Bytes made beforehand, at least one frame: they are sent over and over."""

CHUNK = 64 * 1024


class Feed:
    """What one producer sends in a round. Its socket does not block."""

    def __init__(self, sock: socket.socket, frame: bytes, frames: int, chunk: int) -> None:
        self._send = sock.send
        self._block = memoryview(frame * max(1, BLOCK // len(frame)))
        self._at = 0
        self._chunk = chunk
        self.left = frames * len(frame)

    def advance(self) -> int:
        """Returns the number of bytes sent; 0 if the socket buffer is full."""
        try:
            sent = self._send(self._block[self._at : self._at + min(self._chunk, self.left)])
        except BlockingIOError:
            return 0
        self._at = (self._at + sent) % len(self._block)
        self.left -= sent
        return sent


class Route:
    """`keys`: one for each producer, all of the same length. With an echo the one socket is both."""

    def __init__(
        self, producers: Sequence[socket.socket], subscriber: socket.socket, keys: Sequence[bytes], payload: int
    ) -> None:
        self._producers = producers
        self._subscriber = subscriber
        self._keys = keys
        self._payload = payload
        self._buffer = bytearray(262144)
        self._delivered: dict[int, int] = {}  # messages of a run → bytes that come for it

    def trips(self, count: int) -> list[float]:
        """Seconds from sending one message until all of it is back, one after another."""
        frame, size = self._frame(0, 1), self._size(1)
        for sock in (*self._producers, self._subscriber):
            sock.settimeout(TIMEOUT)
        send, receive, buffer, now = self._producers[0].sendall, self._subscriber.recv_into, self._buffer, time.perf_counter
        seconds = []
        for _ in range(count):
            started = now()
            send(frame)
            got = 0
            while got < size:
                got += receive(buffer) or _ended()
            seconds.append(now() - started)
        self._nothing_more()
        return seconds

    def flow(self, count: int, batch: int) -> float:
        """Seconds for so many messages in runs of `batch`, divided among the producers, until the last byte is there."""
        each = count // batch // len(self._producers)
        chunk = max(4096, CHUNK // len(self._producers))
        for sock in (*self._producers, self._subscriber):
            sock.setblocking(False)
        feeds = deque(Feed(sock, self._frame(index, batch), each, chunk) for index, sock in enumerate(self._producers))
        goal = each * len(feeds) * self._size(batch)
        back = len(self._frame(0, batch)) / self._size(batch)  # bytes sent for a byte that comes
        poll = select.poll()
        poll.register(self._subscriber, select.POLLIN)
        started = time.monotonic()
        sent = received = 0
        while received < goal:
            moved = _advance(feeds, WINDOW - (sent - int(received * back)))
            sent += moved
            got = self._receive()
            received += got
            if not moved and not got and not poll.poll(TIMEOUT * 1000):
                raise TimeoutError(f"{received} of {goal} bytes came")
        seconds = time.monotonic() - started
        if received != goal:
            raise AssertionError(f"{received} bytes came where {goal} were due")
        self._nothing_more()
        return seconds

    def learn(self, batch: int, size: int) -> None:
        """So many bytes come for a run."""
        self._delivered[batch] = size

    def close(self) -> None:
        for sock in {*self._producers, self._subscriber}:
            sock.close()

    def _frame(self, producer: int, batch: int) -> bytes:
        return encode_push(self._keys[producer], batch, self._payload)

    def _size(self, batch: int) -> int:
        """Returns the bytes unchanged if they were not recorded."""
        return self._delivered.get(batch) or len(self._frame(0, batch))

    def _receive(self) -> int:
        try:
            return self._subscriber.recv_into(self._buffer) or _ended()
        except BlockingIOError:
            return 0

    def _nothing_more(self) -> None:
        self._subscriber.setblocking(False)
        if extra := self._receive():
            raise AssertionError(f"{extra} bytes more came than were due")


class Served(Route):
    """Of a server: an end for each producer, and one that subscribes to all keys."""

    def __init__(self, producers: Sequence[End], subscriber: End, keys: Sequence[bytes], payload: int) -> None:
        super().__init__([end.sock for end in producers], subscriber.sock, keys, payload)
        self._ends, self._subscribed = producers, subscriber

    def check(self, batch: int, runs: int) -> int:
        """Every producer pushes so many runs of numbered messages, and all of them must come, in order for each key. How many
        messages that were."""
        for end in (*self._ends, self._subscribed):
            end.sock.settimeout(TIMEOUT)
        before = self._subscribed.bytes
        for end, key in zip(self._ends, self._keys, strict=True):
            end.sock.sendall(b"".join(encode_push(key, batch, self._payload, run * batch) for run in range(runs)))
            self._expect(key, batch * runs)
        size, rest = divmod(self._subscribed.bytes - before, runs * len(self._keys))
        if rest:
            raise AssertionError("runs of the same messages differ in their bytes")
        self.learn(batch, size)
        return batch * runs * len(self._keys)

    def _expect(self, key: bytes, count: int) -> None:
        found: list[bytes] = []
        while len(found) < count:
            run = self._subscribed.expect(Run)
            if run.key != key:
                raise AssertionError(f"{run.key!r} was delivered without a push")
            found += split_payloads(run)
        if found != payloads(0, count, self._payload):
            raise AssertionError("a subscriber did not get every message once and in order")

    def forget(self, count: int, batch: int) -> float:
        """Seconds to push `count` messages to a key without subscribers, until the server has read the last one."""
        producer = self._ends[0]
        producer.sock.settimeout(TIMEOUT)
        feed = Feed(producer.sock, encode_push(b"nobody", batch, self._payload), count // batch, BLOCK)
        started = time.monotonic()
        while feed.left:
            feed.advance()
        producer.send(Ping(7))
        if producer.expect(Pong).ref != 7:
            raise AssertionError("another ping was answered")
        return time.monotonic() - started


def _advance(feeds: "deque[Feed]", room: int) -> int:
    """Sends from each unfinished feed once, while there is room. Returns the number of bytes sent."""
    moved = 0
    for _ in range(len(feeds)):
        if moved >= room:
            break
        moved += feeds[0].advance()
        if feeds[0].left:
            feeds.rotate(-1)
        else:
            feeds.popleft()
    return moved


def _ended() -> int:
    raise ConnectionError("the server ended a connection of the load")

"""Reading what a fan-out brings, as cheaply as Python can: bytes are counted, not parsed.

Every connection gets the same bytes, so byte counts show that all messages arrived. In checked rounds one connection is parsed,
and equal checksums of all others prove that each received every offset once and in order.
"""

import select
import sys
import time
import zlib

from msgspec import Struct

from benchmarks.load.crowd import Crowd

TIMEOUT = 60.0


class Drained(Struct, frozen=True):
    """When each bound was passed by the last connection; and, if checked, one connection's bytes and how many others differ."""

    passed: list[float]
    witness: bytes
    differing: int


class Drain:
    """Reads the connections of one crowd until each has got an exact number of bytes."""

    def __init__(self, crowd: Crowd) -> None:
        # the crowd's own poll: a second one would make every delivery wake two
        self._poll = crowd.poll.poll
        self._sockets = {fd: link.sock for fd, link in crowd.links.items()}
        self._size = max(self._sockets) + 1
        self._buffer = memoryview(bytearray(262144))
        self._witness_fd = min(self._sockets)

    def read(self, bounds: list[int], checked: bool) -> Drained:
        """`bounds`: rising numbers of bytes; the last one ends the reading."""
        counts, steps, waiting = [0] * self._size, [0] * self._size, [len(self._sockets)] * len(bounds)
        sums, witness = [0] * self._size, bytearray()
        limits, passed = [*bounds, sys.maxsize], [0.0] * len(bounds)
        receivers = [self._sockets.get(fd, self._sockets[self._witness_fd]).recv_into for fd in range(self._size)]
        deadline = time.monotonic() + TIMEOUT
        while waiting[-1]:
            for fd in self._ready(deadline):
                got = receivers[fd](self._buffer)
                if checked:
                    sums[fd] = zlib.crc32(self._buffer[:got], sums[fd])
                    if fd == self._witness_fd:
                        witness += self._buffer[:got]
                counts[fd] = total = counts[fd] + got
                while total >= limits[steps[fd]]:
                    step = steps[fd]
                    steps[fd] = step + 1
                    waiting[step] -= 1
                    if not waiting[step]:
                        passed[step] = time.monotonic()
        if sum(counts) != bounds[-1] * len(self._sockets):
            raise ConnectionError("a connection got more bytes than were published")
        return Drained(passed, bytes(witness), sum(sums[fd] != sums[self._witness_fd] for fd in self._sockets))

    def _ready(self, deadline: float) -> list[int]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all of {len(self._sockets)} connections received all messages")
        events = self._poll(1.0)
        # anything but "readable" is an end: such a connection would stay readable without data
        if any(event != select.EPOLLIN for _, event in events):
            raise ConnectionError("the server ended a connection during a fan-out")
        return [fd for fd, _ in events]

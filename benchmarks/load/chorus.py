"""Many publishers at once: each has one request under way, and sends the next when its answer has come.

One thread and one poll for all of them, so that the load leaves the processor to the server.
"""

import select
import time

from benchmarks.load.publisher import Address, Publisher

TIMEOUT = 60.0


class Chorus:
    """Every publisher has a stream of its own, so that all shards have work."""

    def __init__(self, address: Address, publishers: int, payload: int) -> None:
        self._publishers = [Publisher(address, f"chorus {number}", payload) for number in range(publishers)]
        for publisher in self._publishers:
            # a connection that asks for nothing is soon closed
            publisher.position()

    def publish(self, count: int, batch: int) -> float:
        """So many messages, divided among the publishers, in arrays of `batch`; the seconds from first to last answer."""
        each = count // len(self._publishers)
        waiting = {publisher.prepare(each, batch): publisher for publisher in self._publishers}
        poll = select.epoll()
        for fd in waiting:
            poll.register(fd, select.EPOLLIN)
        started = time.monotonic()
        for publisher in self._publishers:
            publisher.advance()
        while waiting:
            if not (ready := poll.poll(TIMEOUT)):
                raise TimeoutError(f"{len(waiting)} publishers had no answer within {TIMEOUT:g} s")
            for fd, _ in ready:
                if waiting[fd].receive() and not waiting[fd].advance():
                    poll.unregister(fd)
                    del waiting[fd]
        poll.close()
        return time.monotonic() - started

    def registered(self) -> int:
        """The messages of all streams, which are dense: the highest offsets, added up. Publishes one more to each."""
        return sum(publisher.position()[1] for publisher in self._publishers)

    @property
    def published(self) -> int:
        return sum(publisher.published for publisher in self._publishers)

    def close(self) -> None:
        for publisher in self._publishers:
            publisher.close()

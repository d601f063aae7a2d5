"""Memory that short-lived topics leave behind: each receives one push, and some have a short-lived subscriber.

Nothing of them is kept, so the server is as large afterwards as before.
"""

from benchmarks.broky.end import End, encode_push
from benchmarks.broky.trips import EPHEMERAL
from benchmarks.cores import Cores, on_core
from benchmarks.report import Figure, figure
from benchmarks.server import Server
from benchmarks.sizes import Sizes
from ropewalk.protocol.broky.frames import Ping, Pong, Run, Subscribe, Subscribed, Unsubscribe

GROUP = 1000
"""Topics that live at the same time."""

SUBSCRIBED = 20
"""One in so many has a subscriber."""


def measure_topics(sizes: Sizes, cores: Cores) -> list[Figure]:
    count, first = sizes.broky_topics, sizes.broky_topics // 10
    with on_core(cores.load):
        with on_core(cores.server):
            server = Server(*EPHEMERAL, "--tcp_command_rate", "0")
        with server:
            passing = Passing(server, sizes.broky_payload)
            passing.by(0, first)  # what the first ones need is needed once
            before = server.usage().resident
            passing.by(first, count)
            after = server.usage().resident
            passing.close()
    details: dict[str, float] = {"topics": count, "subscribed": count // SUBSCRIBED}
    title = f"resident memory after {count:,} short-lived topics, server on core {cores.server}"
    mb = 1024 * 1024
    return [figure("tm", title, "MB", [after / mb], [before / mb], details | cores.details())]


class Passing:
    """Topics that pass by a server."""

    def __init__(self, server: Server, payload: int) -> None:
        self._payload = payload
        self._subscriber, self._producer = End(server.address), End(server.address)

    def by(self, first: int, count: int) -> None:
        for start in range(first, first + count, GROUP):
            self._group([b"topic %d" % number for number in range(start, min(start + GROUP, first + count))])

    def close(self) -> None:
        self._subscriber.close()
        self._producer.close()

    def _group(self, keys: list[bytes]) -> None:
        chosen = keys[::SUBSCRIBED]
        self._subscriber.send(*(Subscribe(ref, key) for ref, key in enumerate(chosen, 1)))
        for _ in chosen:
            self._subscriber.expect(Subscribed)
        self._producer.sock.sendall(b"".join(encode_push(key, 1, self._payload) for key in keys))
        found = [self._subscriber.expect(Run).key for _ in chosen]
        if found != chosen:
            raise AssertionError("a subscriber did not get the message of each of its topics")
        self._subscriber.send(*(Unsubscribe(ref, key) for ref, key in enumerate(chosen, 1)), Ping(1))
        self._subscriber.expect(Pong)
        self._producer.send(Ping(1))
        self._producer.expect(Pong)

"""The commands of Broky's load process: routes by name.

This is the whole surface that the measurements see of it.
"""

import socket
from collections.abc import Sequence

from benchmarks.broky.end import Address, End, connected, holder
from benchmarks.broky.relay import ECHO, PRODUCER, SUBSCRIBER
from benchmarks.broky.route import Route, Served

ATTEMPTS = 100


class Load:
    """Lives in a process of its own (see `benchmarks.remote`). Routes of a server and of the floor carry the same frames."""

    def __init__(self) -> None:
        self._routes: dict[str, Route] = {}
        self._served: dict[str, Served] = {}

    def echo(self, route: str, address: Address, payload: int) -> None:
        sock = _bare(address, ECHO)
        self._routes[route] = Route([sock], sock, _keys(1), payload)

    def relay(self, route: str, address: Address, producers: int, payload: int) -> None:
        subscriber = _bare(address, SUBSCRIBER)
        self._routes[route] = Route([_bare(address, PRODUCER) for _ in range(producers)], subscriber, _keys(producers), payload)

    def serve(self, route: str, address: Address, producers: int, payload: int, apart: Sequence[int] = ()) -> None:
        """`apart`: processes of the server; the subscriber and the producers are on different ones."""
        keys = _keys(producers)
        subscriber = End(address, keys)
        ends = [_apart(address, subscriber, apart) if apart else End(address) for _ in keys]
        self._routes[route] = self._served[route] = Served(ends, subscriber, keys, payload)

    def check(self, route: str, batch: int, runs: int) -> int:
        return self._served[route].check(batch, runs)

    def trips(self, route: str, count: int) -> list[float]:
        return self._routes[route].trips(count)

    def flow(self, route: str, count: int, batch: int) -> float:
        return self._routes[route].flow(count, batch)

    def forget(self, route: str, count: int, batch: int) -> float:
        return self._served[route].forget(count, batch)

    def close(self, route: str) -> None:
        self._served.pop(route, None)
        self._routes.pop(route).close()


def _keys(count: int) -> list[bytes]:
    return [b"key %02d" % number for number in range(count)]


def _bare(address: Address, role: bytes) -> socket.socket:
    sock = connected(address)
    sock.sendall(role)
    if sock.recv(1) != role:
        raise ConnectionError("the floor did not take a connection")
    return sock


def _apart(address: Address, subscriber: End, pids: Sequence[int]) -> End:
    """The system chooses the worker of a connection, so it takes a few attempts."""
    there = holder(pids, subscriber.sock)
    for _ in range(ATTEMPTS):
        end = End(address)
        if holder(pids, end.sock) != there:
            return end
        end.close()
    raise AssertionError(f"{ATTEMPTS} connections all came to one worker")

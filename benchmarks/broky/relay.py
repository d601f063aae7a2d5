"""`python -m benchmarks.broky.relay`: the floor, a bare uvloop that moves bytes and reads none of them.

The first byte of a connection selects its role, and is sent back: an echo, a producer, or a subscriber of all producers.
"""

import asyncio
from typing import cast

import uvloop

ECHO, PRODUCER, SUBSCRIBER = b"e", b"p", b"s"


class Newcomer(asyncio.Protocol):
    """Until its first byte."""

    def __init__(self, subscribers: list[asyncio.Transport]) -> None:
        self._subscribers = subscribers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if data == ECHO:
            self._transport.set_protocol(Echo(self._transport))
        elif data == PRODUCER:
            self._transport.set_protocol(Producer(self._subscribers))
        else:
            self._transport.set_protocol(Subscriber(self._transport, self._subscribers))
        self._transport.write(data)


class Echo(asyncio.Protocol):
    def __init__(self, transport: asyncio.Transport) -> None:
        self.data_received = transport.write  # type: ignore[method-assign]


class Producer(asyncio.Protocol):
    def __init__(self, subscribers: list[asyncio.Transport]) -> None:
        self._subscribers = subscribers

    def data_received(self, data: bytes) -> None:
        for subscriber in self._subscribers:
            subscriber.write(data)


class Subscriber(asyncio.Protocol):
    def __init__(self, transport: asyncio.Transport, subscribers: list[asyncio.Transport]) -> None:
        self._transport, self._subscribers = transport, subscribers
        subscribers.append(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._subscribers.remove(self._transport)


async def serve() -> None:
    subscribers: list[asyncio.Transport] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Newcomer(subscribers), "127.0.0.1", 0, backlog=4096)
    host, port = server.sockets[0].getsockname()
    print(f"listening on tcp://{host}:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve())

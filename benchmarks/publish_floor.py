"""`python -m benchmarks.publish_floor ANSWER FRAME`: the floor of publishing over HTTP. Both are bytes in hexadecimal.

A bare uvloop with httptools: every request but an upgrade gets the answer, and every connection that was upgraded the frame.
"""

import asyncio
import sys
from typing import cast

import httptools
import uvloop

from benchmarks.floor import ANSWER as UPGRADED


class Connection(asyncio.Protocol):
    def __init__(self, answer: bytes, frame: bytes, subscribers: list[asyncio.Transport]) -> None:
        self._answer = answer
        self._frame = frame
        self._subscribers = subscribers
        self._parser = httptools.HttpRequestParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._subscribers.append(self._transport)
            self._transport.write(UPGRADED)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name] = value

    def on_body(self, body: bytes) -> None:
        self._body = body

    def on_message_complete(self) -> None:
        if not self._parser.should_upgrade():
            self._transport.write(self._answer)
            for subscriber in self._subscribers:
                subscriber.write(self._frame)


async def serve(answer: bytes, frame: bytes) -> None:
    subscribers: list[asyncio.Transport] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(answer, frame, subscribers), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"listening on http://{host}:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(*map(bytes.fromhex, sys.argv[1:])))

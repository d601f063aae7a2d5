"""The floor of connecting: picows alone on the event loop that the server uses, answering with bytes made beforehand.

It parses the upgrade and the first frame, as anything built on picows must; it decides, registers and remembers nothing.
"""

import asyncio
import threading
from concurrent.futures import Future

import uvloop
from picows import (
    WSFrame,
    WSListener,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_create_server,
)

from benchmarks.load.wire import PROTOCOL

Address = tuple[str, int]
BACKLOG = 4096
READ_BUFFER = 1024


class BarePicows:
    """Lives in a process of its own (see `benchmarks.remote`). Its event loop has a thread beside the one that is called."""

    def serve(self, welcome: bytes, answer: bytes) -> Address:
        """Sends fixed bytes to each new connection, and others as the reply to its first frame."""
        address: Future[Address] = Future()
        threading.Thread(target=uvloop.run, args=(_serve(welcome, answer, address),), daemon=True).start()
        return address.result()


async def _serve(welcome: bytes, answer: bytes, address: "Future[Address]") -> None:
    class Answering(WSListener):
        def on_ws_connected(self, transport: WSTransport) -> None:
            transport.underlying_transport.write(welcome)

        def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
            transport.underlying_transport.write(answer)

    def upgrade(request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
        response = WSUpgradeResponse.create_101_response({"Sec-WebSocket-Protocol": PROTOCOL})
        return WSUpgradeResponseWithListener(response, Answering())

    server = await ws_create_server(
        upgrade,
        "127.0.0.1",
        0,
        enable_auto_pong=False,
        read_buffer_init_size=READ_BUFFER,
        backlog=BACKLOG,
        use_aiofastnet=False,  # the event loop's own transports, as the server has them
    )
    host, port = server.sockets[0].getsockname()
    address.set_result((host, port))
    await asyncio.Event().wait()

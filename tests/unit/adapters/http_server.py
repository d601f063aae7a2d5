"""Endpoints behind a real port, for tests. A test fails if the server logs an error."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from ropewalk.adapters.endpoints.admission import ConnectionLimits
from ropewalk.adapters.endpoints.routes import HttpRoute
from ropewalk.adapters.endpoints.shared_port import SharedPort
from ropewalk.adapters.endpoints.websocket import WebSocketEndpoint, WebSocketOptions
from ropewalk.protocol.proxies import TrustedProxies


def shared_port(
    routes: Sequence[HttpRoute] = (), refusals: Counter[str] | None = None, limits: ConnectionLimits | None = None
) -> SharedPort:
    """A port with these routes and no WebSocket."""
    proxies = TrustedProxies()
    sockets = WebSocketEndpoint(lambda *_: None, lambda _: True, proxies, WebSocketOptions())  # type: ignore[arg-type]
    limits = limits or ConnectionLimits(write_timeout=60.0)
    port = SharedPort(sockets, limits, Counter() if refusals is None else refusals, proxies)
    port.http.serve(routes)
    return port


class Client:
    """Sends requests to one server. The methods are those of aiohttp's ClientSession."""

    def __init__(self, session: ClientSession, host: str, port: int) -> None:
        self.session = session
        self.host = host
        self.port = port

    def __getattr__(self, method: str) -> Any:
        return getattr(self.session, method)


class _Failures(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(self.format(record))


@asynccontextmanager
async def serving(routes: Sequence[HttpRoute]) -> AsyncIterator[Client]:
    port, failures = shared_port(routes), _Failures()
    logging.getLogger("ropewalk").addHandler(failures)
    listener = await asyncio.get_running_loop().create_server(port.detector, "127.0.0.1", 0)
    host, number = listener.sockets[0].getsockname()
    try:
        async with ClientSession(f"http://{host}:{number}") as session:
            yield Client(session, host, number)
    finally:
        listener.close()
        await port.http.stop()
        logging.getLogger("ropewalk").removeHandler(failures)
    assert failures.seen == []


@asynccontextmanager
async def serving_on_unix_socket(path: Path, routes: Sequence[HttpRoute]) -> AsyncIterator[None]:
    port = shared_port(routes)
    listener = await asyncio.get_running_loop().create_unix_server(port.detector, path)
    try:
        yield
    finally:
        listener.close()
        await port.http.stop()
        path.unlink(missing_ok=True)

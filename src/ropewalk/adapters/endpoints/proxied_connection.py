"""What handlers ask of the connection of their request: the address of a client that came through proxies, and its end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aiohttp import web

from ropewalk.protocol.proxies import FORWARDING_HEADERS, Peer, TrustedProxies, joined_headers


class ProxiedConnection(web.RequestHandler):
    """An HTTP connection that knows its other end, and which proxies are believed. `when_lost` is called at its end."""

    peer: Peer
    proxies: TrustedProxies
    when_lost: Callable[[], None] | None = None

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self.when_lost is not None:
            self.when_lost()


@contextmanager
def told_when_lost(request: web.BaseRequest, tell: Callable[[], None]) -> Iterator[None]:
    """aiohttp itself tells a handler only when that writes, or reads a body."""
    connection = request.protocol
    if not isinstance(connection, ProxiedConnection):
        yield
        return
    connection.when_lost = tell
    try:
        yield
    finally:
        connection.when_lost = None


def client_of(request: web.BaseRequest) -> tuple[str, str]:
    """The client's address and the scheme it used."""
    connection = request.protocol
    if not isinstance(connection, ProxiedConnection):
        return request.remote or "", request.scheme
    forwarded = joined_headers(request.headers.getall, FORWARDING_HEADERS)
    return connection.proxies.client(connection.peer, request.scheme, forwarded)

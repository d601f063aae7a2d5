"""The client address of a request that came through proxies."""

from aiohttp import web

from ropewalk.protocol.proxies import FORWARDING_HEADERS, Peer, TrustedProxies, joined_headers


class ProxiedConnection(web.RequestHandler):
    """An HTTP connection that knows its other end, and which proxies are believed."""

    peer: Peer
    proxies: TrustedProxies


def client_of(request: web.BaseRequest) -> tuple[str, str]:
    """The client's address and the scheme it used."""
    connection = request.protocol
    if not isinstance(connection, ProxiedConnection):
        return request.remote or "", request.scheme
    forwarded = joined_headers(request.headers.getall, FORWARDING_HEADERS)
    return connection.proxies.client(connection.peer, request.scheme, forwarded)

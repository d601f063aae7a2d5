"""A debug log line for each HTTP request. Without the query, because it may contain tokens."""

import logging

from aiohttp.abc import AbstractAccessLogger
from aiohttp.web import BaseRequest, StreamResponse

from ropewalk.adapters.endpoints.proxied_connection import client_of
from ropewalk.protocol.plain_request import PlainHead
from ropewalk.protocol.proxies import FORWARDING_HEADERS, Peer, TrustedProxies

logger = logging.getLogger("ropewalk.http")


def request_logger() -> logging.Logger | None:
    """What aiohttp wants as its `access_log`. None where nobody would read it: then aiohttp does not even measure."""
    return logger if logger.isEnabledFor(logging.DEBUG) else None


class RequestLog(AbstractAccessLogger):
    def log(self, request: BaseRequest, response: StreamResponse, time: float) -> None:
        _log(request.method, request.path, response.status, client_of(request)[0], time)


def log_plain_request(head: PlainHead, status: int, peer: Peer, proxies: TrustedProxies, time: float) -> None:
    """The same for a request that aiohttp has not seen."""
    forwarded = {name: head.headers.get(name.encode(), b"").decode() for name in FORWARDING_HEADERS}
    _log(head.method.decode(), head.target.decode(), status, proxies.client(peer, "", forwarded)[0], time)


def _log(method: str, path: str, status: int, remote: str, time: float) -> None:
    extra = {"method": method, "path": path, "status": status, "remote": remote, "seconds": round(time, 6)}
    logger.debug("request", extra=extra)

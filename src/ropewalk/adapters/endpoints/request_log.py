"""A debug log line for each HTTP request. Without the query, because it may contain tokens."""

import logging

from aiohttp.abc import AbstractAccessLogger
from aiohttp.web import BaseRequest, StreamResponse

from ropewalk.adapters.endpoints.proxied_connection import client_of

logger = logging.getLogger("ropewalk.http")


def request_logger() -> logging.Logger | None:
    """What aiohttp wants as its `access_log`. None where nobody would read it: then aiohttp does not even measure."""
    return logger if logger.isEnabledFor(logging.DEBUG) else None


class RequestLog(AbstractAccessLogger):
    def log(self, request: BaseRequest, response: StreamResponse, time: float) -> None:
        logger.debug(
            "request",
            extra={
                "method": request.method,
                "path": request.path,
                "status": response.status,
                "remote": client_of(request)[0],
                "seconds": round(time, 6),
            },
        )

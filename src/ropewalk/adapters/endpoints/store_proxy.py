"""Passes requests that only the store process can answer on to its Unix socket: a worker's side of such endpoints.

Invariant: bodies are streamed both ways, no faster than the slower end takes them, and are passed on as they were sent. Who
may ask is decided by the store, which gets the request's headers.
"""

import logging
from collections.abc import Mapping

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from ropewalk.adapters.endpoints.http_guard import refusal, unreadable

logger = logging.getLogger("ropewalk.http")

AT_ONCE = 64
"""Requests of one worker that are with the store; the others wait for their turn."""

TURN_SECONDS = 10.0
"""How long a request waits for its turn and for the store to take the connection."""

PIECE_BYTES = 256 * 1024

# RFC 9110 section 7.6.1: these are about one connection. Expect is answered here, by the HTTP library.
_OF_ONE_CONNECTION = frozenset(
    ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "expect")
)


class StoreProxy:
    """`stop` closes what is open to the store."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._http: aiohttp.ClientSession | None = None

    def routes(self, root: str) -> list[web.RouteDef]:
        """All that is at `root` and below it."""
        return [web.route("*", root, self.pass_on), web.route("*", root + r"/{rest:[\s\S]*}", self.pass_on)]

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        try:
            async with self._session().request(
                request.method,
                _at_the_store(request.rel_url),
                headers=_passed(request.headers),
                data=request.content if request.can_read_body else None,
                allow_redirects=False,
            ) as answer:
                return await _passed_back(request, answer)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            if request.content.exception() is not None:
                return unreadable(request, refusal(400, "the body cannot be read"))
            logger.debug("the store process does not answer", extra={"reason": str(error) or type(error).__name__})
            return unreadable(request, refusal(503, "the store process does not answer", {"Retry-After": "1"}))

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            # A kept connection may have lost its other end with a store that was started again, which only a request finds out.
            connector = aiohttp.UnixConnector(self._path, limit=AT_ONCE, force_close=True)
            self._http = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None, connect=TURN_SECONDS),
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                requote_redirect_url=False,
            )
        return self._http


def _at_the_store(url: URL) -> URL:
    """As it was written: nothing is decoded and encoded again."""
    return URL.build(scheme="http", host="store", path=url.raw_path, query_string=url.raw_query_string, encoded=True)


def _passed(headers: Mapping[str, str]) -> CIMultiDict[str]:
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    return CIMultiDict(
        (name, value) for name, value in headers.items() if name.lower() not in _OF_ONE_CONNECTION and name.lower() not in named
    )


async def _passed_back(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=_passed(answer.headers))
    if not request.content.is_eof():
        response.force_close()  # it was answered before its body had come whole
    await response.prepare(request)
    try:
        async for piece in answer.content.iter_chunked(PIECE_BYTES):
            await response.write(piece)
    except ConnectionResetError:
        return response  # of the one who asked
    except (aiohttp.ClientError, OSError):
        # The answer has begun, so that only its end can say it: cut off, it cannot be taken for a whole one.
        if request.transport is not None:
            request.transport.close()
        return response
    await response.write_eof()
    return response

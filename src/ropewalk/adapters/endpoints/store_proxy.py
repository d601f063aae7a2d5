"""Passes requests that only the store process can answer on to its Unix socket: a worker's side of such endpoints.

Invariant: bodies are streamed both ways, no faster than the slower end takes them, and are passed on as they were sent. Who
may ask is decided by the store, which gets the request's headers.
"""

import logging
from contextlib import suppress

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from ropewalk.adapters.endpoints.http_requests import HttpRequest, RequestHeaders
from ropewalk.adapters.endpoints.http_responses import ResponseStream, refusal
from ropewalk.adapters.endpoints.routes import ANY, HttpAnswer, HttpRoute

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
_OF_ONE_RESPONSE = _OF_ONE_CONNECTION | {"content-length", "date", "server"}


class StoreProxy:
    """`stop` closes the open connections to the store."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._http: aiohttp.ClientSession | None = None

    def routes(self, root: str) -> list[HttpRoute]:
        """All paths at `root` and below it."""
        return [HttpRoute(ANY, root, self.pass_on), HttpRoute(ANY, f"{root}/{{rest*}}", self.pass_on)]

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def pass_on(self, request: HttpRequest) -> HttpAnswer:
        try:
            async with self._session().request(
                request.method,
                _url_at_the_store(request.target),
                headers=_passed(request.headers),
                data=request.body.chunks() if request.has_body else None,
                allow_redirects=False,
            ) as answer:
                return await _stream(request, answer)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            if request.body.failed:
                return refusal(400, "the body cannot be read", close=True)
            logger.debug("the store process does not answer", extra={"reason": str(error) or type(error).__name__})
            return refusal(503, "the store process does not answer", {"Retry-After": "1"}, close=True)

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


def _url_at_the_store(target: str) -> URL:
    """As it was sent: nothing is decoded and encoded again."""
    path, _, query = target.partition("?")
    return URL.build(scheme="http", host="store", path=path, query_string=query, encoded=True)


def _passed(headers: RequestHeaders) -> CIMultiDict[str]:
    named = {name.strip().lower() for name in headers.get("connection").split(",")}
    return CIMultiDict((name, value) for name, value in headers if name not in _OF_ONE_CONNECTION and name not in named)


def _passed_back(answer: aiohttp.ClientResponse) -> dict[str, str]:
    """The store sets no field twice. The framing of the body is set again for this connection."""
    return {name: value for name, value in answer.headers.items() if name.lower() not in _OF_ONE_RESPONSE}


async def _stream(request: HttpRequest, answer: aiohttp.ClientResponse) -> ResponseStream:
    """Without an end where the store breaks off: a client cannot take that for a whole response."""
    stream = ResponseStream(request, answer.status, _passed_back(answer), close=not request.body.complete)
    with suppress(aiohttp.ClientError, OSError):
        async for piece in answer.content.iter_chunked(PIECE_BYTES):
            await stream.write(piece)
        await stream.end()
    return stream

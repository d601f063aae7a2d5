"""Turns the bytes of an HTTP/1.1 connection into requests, by httptools. No I/O.

Invariant: where a request ends is decided by httptools alone; behind anything malformed nothing is parsed.
"""

from collections import deque

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from ropewalk.adapters.endpoints.http_requests import Fields, HttpExchange, HttpRequest
from ropewalk.adapters.endpoints.http_responses import HttpResponse, refusal
from ropewalk.model.errors import BadRequest

MAX_FIELDS = 128


class _Refused(Exception):
    """Stops httptools at a head that was refused."""


class RequestParser:
    """`queue`: requests whose heads have come, and at its end a `Response` that refuses what is malformed. `newest`: the last
    request. `in_head`: a head has begun and is not complete. `ended`: nothing more is parsed.

    The methods `on_…` are called by httptools.
    """

    __slots__ = ("_exchange", "_fields", "_http", "_target", "chunks", "ended", "in_head", "newest", "queue")

    def __init__(self, exchange: HttpExchange) -> None:
        self._exchange = exchange
        self._http = HttpRequestParser(self)
        self._target = b""
        self._fields: Fields = []
        self.in_head = False
        self.ended = False
        self.newest: HttpRequest | None = None
        self.queue: deque[HttpRequest | HttpResponse] = deque()
        self.chunks = 0

    @property
    def is_between_requests(self) -> bool:
        return not self.in_head and (self.newest is None or self.newest.body.complete)

    def feed(self, data: bytes) -> bytes:
        """Returns the bytes behind a request that asks for an upgrade."""
        try:
            self._http.feed_data(data)
        except HttpParserUpgrade as upgrade:
            rest: bytes = data[upgrade.args[0] :]
            return rest
        except HttpParserError as error:
            if not self.ended:
                self._malformed(error)
        return b""

    def refuse(self, status: int, reason: str) -> None:
        """Stop parsing, and reject the malformed request once all requests before it are answered."""
        self.ended = True
        self.in_head = False
        refused = refusal(status, reason, close=True)
        if self._http.get_method() == b"HEAD":
            refused.body = b""
        self.queue.append(refused)

    def _malformed(self, error: HttpParserError) -> None:
        newest = self.newest
        if newest is not None and not newest.body.complete and not self.in_head:
            self.ended = True
            newest.keep_alive = False
            newest.body.fail("the body is not framed as its head says")
        elif isinstance(error.__context__, BadRequest):
            self.refuse(400, str(error.__context__))
        else:
            self.refuse(400, "the request is not HTTP/1.1")

    def close(self) -> None:
        """Drop what refers back to this object or the connection: only the garbage collector would free them."""
        del self._http, self._exchange
        self.newest = None
        self.queue.clear()
        self.ended = True

    def on_message_begin(self) -> None:
        self.in_head = True
        self._target = b""
        self._fields = []

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_head:  # trailers are dropped
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        http, version = self._http, self._http.get_http_version()
        if version not in ("1.1", "1.0"):
            self.refuse(505 if version == "2.0" else 400, "HTTP/1.1 is needed")
            raise _Refused
        if len(self._fields) > MAX_FIELDS:
            self.refuse(431, f"a request may have {MAX_FIELDS} header fields")
            raise _Refused
        request = HttpRequest(
            self._exchange, http.get_method().decode(), self._target, self._fields, http.should_keep_alive(), version == "1.0"
        )
        if len(request.headers.getall("host")) != 1 and not request.http_1_0:
            raise BadRequest("the header Host is needed, once")
        encodings = request.headers.getall("transfer-encoding")
        if encodings and (request.http_1_0 or [encoding.lower() for encoding in encodings] != ["chunked"]):
            raise BadRequest("the only transfer encoding is chunked, in HTTP/1.1")
        if http.should_upgrade():
            # Its body, if it had one, would be taken for the new protocol.
            if request.has_body:
                raise BadRequest("a request with a body cannot ask for an upgrade")
            request.keep_alive = False
        self.in_head = False
        self.newest = request
        self.queue.append(request)

    def on_body(self, data: bytes) -> None:
        assert self.newest is not None
        self.newest.body.feed(data)

    def on_chunk_header(self) -> None:
        self.chunks += 1

    def on_message_complete(self) -> None:
        newest = self.newest
        assert newest is not None
        newest.body.end()
        self.ended = not newest.keep_alive

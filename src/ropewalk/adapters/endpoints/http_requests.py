"""HTTP requests: their parser, headers, path, query, and a body that is read as it arrives. No I/O."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol
from urllib.parse import unquote_to_bytes, urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from ropewalk.model.errors import BadRequest
from ropewalk.protocol.handshake import query_params

MAX_FIELDS = 128

Fields = list[tuple[bytes, bytes]]
"""The header fields of a request as they came, in order."""


class UnreadableBody(ConnectionError):
    """The framing of the body does not match the request's head, or the connection was lost before its end."""


class RequestHeaders:
    """The header fields of a request. Names are in lower case; of a name that is repeated, `get` returns the first value."""

    __slots__ = ("_all", "_first")

    def __init__(self, fields: Fields) -> None:
        self._all = [(name.decode("ascii").lower(), value.decode("utf-8", "surrogateescape")) for name, value in fields]
        self._first = dict(self._all)
        if len(self._first) < len(self._all):
            self._first = dict(reversed(self._all))

    def get(self, name: str, default: str = "") -> str:
        return self._first.get(name, default)

    def getall(self, name: str, default: Sequence[str] = ()) -> Sequence[str]:
        return [value for each, value in self._all if each == name] or default

    def __contains__(self, name: str) -> bool:
        return name in self._first

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._all)

    def joined(self) -> dict[str, str]:
        """By name; of a name that is repeated the last value."""
        return dict(self._all)


class HttpExchange(Protocol):
    """The connection of a request, as its handler sees it.

    `transport` is None once the connection is lost. Then everything in `when_lost` is removed and called.
    """

    transport: asyncio.Transport | None
    when_lost: list[Callable[[], None]]

    def client(self, headers: "RequestHeaders") -> tuple[str, str]:
        """The client's address and the scheme it used."""

    def body_awaited(self) -> None:
        """The handler starts to read the body: sends `100 Continue` if the client waits for it."""

    def body_taken(self) -> None:
        """The handler has taken everything that was buffered of the body."""

    def stream_begun(self) -> None:
        """The response is a stream, which ends early if the client closes its side of the connection."""

    async def drain(self) -> None:
        """Wait until the client has read most of the written bytes. Raises ConnectionResetError."""


class RequestBody:
    """The body of a request as it arrives, still compressed if it was sent so. One handler may read it, once.

    `complete`: all of it has come. `received`: so many bytes have. `buffered`: so many of them are not read yet.
    """

    __slots__ = ("_buffer", "_error", "_exchange", "_waiter", "complete", "discarding", "received")

    def __init__(self, exchange: HttpExchange) -> None:
        self._exchange = exchange
        self._buffer = bytearray()
        self._error: UnreadableBody | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.complete = False
        self.discarding = False
        self.received = 0

    @property
    def buffered(self) -> int:
        return len(self._buffer)

    @property
    def failed(self) -> bool:
        return self._error is not None

    async def chunks(self) -> AsyncIterator[bytes]:
        """Raises UnreadableBody."""
        if not self.complete and not self._buffer:
            self._exchange.body_awaited()
        while True:
            while not (self._buffer or self.complete or self._error):
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            if self._error is not None:
                raise UnreadableBody(str(self._error))
            if not self._buffer:
                return
            chunk = self.take()
            self._exchange.body_taken()
            yield chunk

    def take(self) -> bytes:
        """Everything that is buffered."""
        taken = bytes(self._buffer)
        self._buffer.clear()
        return taken

    def peek(self) -> bytes:
        """The same, which stays buffered."""
        return bytes(self._buffer)

    # --- called by the connection -------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        self.received += len(data)
        if not self.discarding:
            self._buffer += data
            self._wake()

    def end(self) -> None:
        self.complete = True
        self._wake()

    def fail(self, reason: str) -> None:
        """Harmless for a body that is complete."""
        if not self.complete:
            self._error = self._error or UnreadableBody(reason)
            self._wake()

    def discard(self) -> None:
        """Discard the received and all further input."""
        self.discarding = True
        self._buffer.clear()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class HttpRequest:
    """One request. `target` is the path with the query, as it was sent. `path` is decoded.

    `keep_alive`: whether the connection may be used again. `params`: the parts of the path that its route names.
    """

    __slots__ = (
        "_query",
        "begun",
        "body",
        "continue_expected",
        "exchange",
        "fields",
        "headers",
        "http_1_0",
        "keep_alive",
        "length",
        "method",
        "params",
        "path",
        "raw_path",
        "target",
    )

    def __init__(
        self,
        exchange: HttpExchange,
        method: str,
        target: bytes,
        fields: Fields,
        keep_alive: bool = True,
        http_1_0: bool = False,
    ) -> None:
        """Raises BadRequest."""
        self.exchange = exchange
        self.method = method
        self.target = origin_form(target)
        self.fields = fields
        self.headers = RequestHeaders(fields)
        self.body = RequestBody(exchange)
        self.keep_alive = keep_alive
        self.http_1_0 = http_1_0
        self.params: Mapping[str, str] = {}
        self.begun = 0.0
        self.raw_path, _, self._query = self.target.partition("?")
        self.path = decode_path(self.raw_path)
        announced = self.headers.get("content-length")
        self.length = int(announced) if announced else None  # the parser lets digits through only
        self.continue_expected = self._expects_continue()

    @property
    def query(self) -> dict[str, str]:
        return query_params(self._query)

    @property
    def has_body(self) -> bool:
        return bool(self.length) or "transfer-encoding" in self.headers

    def client(self) -> tuple[str, str]:
        """The client's address and the scheme it used."""
        return self.exchange.client(self.headers)

    def _expects_continue(self) -> bool:
        expected = self.headers.get("expect").lower()
        if expected not in ("", "100-continue"):
            raise BadRequest("only 100-continue can be expected")
        return bool(expected) and not self.http_1_0


def origin_form(target: bytes) -> str:
    """The path and the query of a request target. Raises BadRequest for one that names neither."""
    try:
        text = target.decode("ascii")
        if not text.startswith("/"):
            parts = urlsplit(text)
            if parts.scheme not in ("http", "https") or not parts.netloc:
                raise ValueError
            text = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    except ValueError:
        raise BadRequest("the request target must be a path") from None
    return text.partition("#")[0]


def decode_path(path: str) -> str:
    """Raises BadRequest."""
    if "%" not in path:
        return path
    try:
        return unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise BadRequest("the path is not UTF-8") from None


class _Refused(Exception):
    """Stops httptools at a rejected head."""


class MalformedRequest(NamedTuple):
    """The last item of the parser's queue if the input is not a request. Answered after the requests before it."""

    status: int
    reason: str
    is_head: bool


class RequestParser:
    """Parses the input of an HTTP/1.1 connection with httptools, which calls the methods `on_…`. No I/O.

    httptools alone decides where a request ends. Nothing is parsed after a malformed request.

    Attributes:
        queue: the requests whose heads are complete, then at most one `MalformedRequest`.
        newest: the last request.
        in_head: a head has begun and is not complete.
        ended: nothing more is parsed.
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
        self.queue: deque[HttpRequest | MalformedRequest] = deque()
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
        self.queue.append(MalformedRequest(status, reason, self._http.get_method() == b"HEAD"))

    def _malformed(self, error: HttpParserError) -> None:
        newest = self.newest
        if newest is not None and not newest.body.complete and not self.in_head:
            self.ended = True
            newest.keep_alive = False
            newest.body.fail("the framing of the body does not match the head of the request")
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

"""Responses of the HTTP endpoints. A handler returns a `Response`, or the `ResponseStream` that it has written to."""

import time
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus

import msgspec

from ropewalk.adapters.endpoints.http_requests import HttpRequest

REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
JSON = b"Content-Type: application/json\r\n"


class HttpResponse:
    """A response that is known as a whole. `fields` are encoded header lines. `close`: end the connection behind it."""

    __slots__ = ("body", "close", "fields", "status")

    def __init__(self, status: int = 200, body: bytes = b"", fields: bytes = b"", close: bool = False) -> None:
        self.status = status
        self.body = body
        self.fields = fields
        self.close = close


def encode_fields(fields: Mapping[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode("utf-8", "surrogateescape")


def json_answer(status: int, body: dict[str, object], headers: Mapping[str, str] | None = None) -> HttpResponse:
    return HttpResponse(status, msgspec.json.encode(body), JSON + encode_fields(headers) if headers else JSON)


def refusal(status: int, reason: str, headers: Mapping[str, str] | None = None, close: bool = False) -> HttpResponse:
    refused = json_answer(status, {"error": reason}, headers)
    refused.close = close
    return refused


def encode_response(request: HttpRequest | None, response: HttpResponse, close: bool = True) -> bytes:
    """`request` is None where none could be parsed."""
    body = response.body
    fields = b"%bContent-Length: %d\r\n" % (response.fields, len(body))
    head = _encode_head(response.status, fields, _connection_field(request, close))
    return head if request is not None and request.method == "HEAD" else head + body


def _encode_head(status: int, fields: bytes, connection: bytes) -> bytes:
    return b"HTTP/1.1 %d %b\r\n%b%b%b\r\n" % (status, REASONS[status], fields, _current_date(), connection)


def _connection_field(request: HttpRequest | None, close: bool) -> bytes:
    if close:
        return b"Connection: close\r\n"
    return b"Connection: keep-alive\r\n" if request is not None and request.http_1_0 else b""


class _Date:
    """The fields that all responses have, encoded once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._encoded = b""

    def __call__(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._encoded = f"Date: {formatdate(second, usegmt=True)}\r\nServer: ropewalk\r\n".encode()
        return self._encoded


_current_date = _Date()


class ResponseStream:
    """A response that is written piece by piece. Its head is sent at once.

    A stream that is dropped before `end` leaves the client with an incomplete response, which it can detect.
    """

    __slots__ = ("_chunked", "_request", "close", "ended", "status")

    def __init__(self, request: HttpRequest, status: int, fields: Mapping[str, str], close: bool = False) -> None:
        self._request = request
        self._chunked = not request.http_1_0
        self.status = status
        self.close = close or request.http_1_0 or not request.keep_alive
        self.ended = False
        request.exchange.stream_begun()
        lines = encode_fields(fields) + (b"Transfer-Encoding: chunked\r\n" if self._chunked else b"")
        self._write(_encode_head(status, lines, _connection_field(request, self.close)))

    async def write(self, data: bytes) -> None:
        """Returns when the client has read most of the written bytes. Raises ConnectionResetError."""
        if data and self._request.method != "HEAD":
            self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        await self._request.exchange.drain()

    async def end(self) -> None:
        if self._chunked and self._request.method != "HEAD":
            self._write(b"0\r\n\r\n")
        self.ended = True
        await self._request.exchange.drain()

    def _write(self, data: bytes) -> None:
        transport = self._request.exchange.transport
        if transport is not None:
            transport.write(data)

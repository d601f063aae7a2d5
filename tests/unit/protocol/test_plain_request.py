"""Plain request heads are parsed; all others are left to an HTTP library."""

import pytest
from ropewalk.protocol.plain_request import HEAD_END, MOST_HEAD_BYTES, MOST_HEADERS, PlainHead, read_head


def read(head: bytes) -> PlainHead | None:
    return read_head(head, 0, head.find(HEAD_END))


def test_plain_head_has_headers_and_sizes() -> None:
    raw = b"POST /_broadcast HTTP/1.1\r\nHost: x\r\nCONTENT-LENGTH: \t12 \r\nConnection: Keep-Alive\r\nX:\r\n\r\n"
    headers = {b"host": b"x", b"content-length": b"12", b"connection": b"Keep-Alive", b"x": b""}
    assert read(raw) == PlainHead(raw, b"POST", b"/_broadcast", headers, 12, len(raw) + 12)


def test_only_the_given_range_is_read() -> None:
    raw = b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n"
    data = b"before" + raw + b"behind"
    assert read_head(data, 6, data.find(HEAD_END)) == PlainHead(raw, b"GET", b"/a?b=c", {b"host": b"x"}, 0, len(raw))


def test_unusual_request_line_is_not_plain(subtests: pytest.Subtests) -> None:
    rows: list[bytes] = [
        b"POST /x HTTP/1.0",
        b"POST /x HTTP/2.0",
        b"POST /x HTTP/1.1 ",
        b"POST  /x HTTP/1.1",
        b"POST /x y HTTP/1.1",
        b"post /x HTTP/1.1",
        b"CONNECT /x HTTP/1.1",
        b"POST http://x/x HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"POST /\xc3\xbc HTTP/1.1",
        b"POST /x\x00 HTTP/1.1",
        b"\r\nPOST /x HTTP/1.1",
    ]
    for line in rows:
        with subtests.test(line=line):
            assert read(line + b"\r\nHost: x\r\n\r\n") is None


def test_unusual_headers_are_not_plain(subtests: pytest.Subtests) -> None:
    rows: list[bytes] = [
        b"X: without a host",
        b"Content-Length: 1\r\nContent-Length: 1",
        b"Content-Length: 1\r\ncontent-length: 2",
        b"Content-Length: -1",
        b"Content-Length: +1",
        b"Content-Length: 1 1",
        b"Content-Length: 1, 1",
        b"Content-Length: 0x1",
        b"Content-Length: 1_0",
        b"Content-Length:",
        b"Content-Length: " + b"1" * 20,
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: identity",
        b"Content-Length: 1\r\nTransfer-Encoding: chunked",
        b"Expect: 100-continue",
        b"Upgrade: h2c",
        b"Connection: close",
        b"Connection: keep-alive, upgrade",
        b"Connection:",
        b"Host: x\r\nHost: y",
        b"X : y",
        b" X: y",
        b"X: y\r\n folded",
        b"X",
        b": y",
        b"X: \xff",
        b"X: \x00",
        b"X: a\rb",
        b"X: a\nY: b",
        b"X\xa0: y",
        b"X: " + b"." * MOST_HEAD_BYTES,
        b"\r\n".join(b"X-%d: y" % number for number in range(MOST_HEADERS + 1)),
    ]
    for headers in rows:
        with subtests.test(headers=headers):
            host = b"Host: z\r\n" if b"without" not in headers else b""
            assert read(b"POST /x HTTP/1.1\r\n" + host + headers + b"\r\n\r\n") is None

"""Plain requests are parsed by aiohttp's parser with the same fields and the same end."""

import asyncio

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import HttpRequestParser
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.protocol.plain_request import HEAD_END, read_head

NAMES = [
    "Host",
    "Content-Length",
    "content-length",
    "Transfer-Encoding",
    "Connection",
    "Expect",
    "X",
    "X-Y",
    "X ",
    "",
    "X:",
    "é",
]
VALUES = [
    "x",
    "0",
    "5",
    "05",
    " 5\t",
    "5,5",
    "+5",
    "-1",
    "chunked",
    "close",
    "keep-alive",
    "Keep-Alive",
    "",
    "\x00",
    "\x0b",
    "a\rb",
]
LINES = [
    "POST /x HTTP/1.1",
    "GET / HTTP/1.1",
    "PUT /a?b#c HTTP/1.1",
    "PATCH //[ HTTP/1.1",
    "BREW /x HTTP/1.1",
    "GET /x HTTP/1.0",
]
ENDS = ["\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r\n "]

header = st.builds(
    lambda name, colon, value, end: name + colon + value + end,
    st.sampled_from(NAMES) | st.text("aA-_!~ :", max_size=3),
    st.sampled_from([":", ": ", ":\t"]),
    st.sampled_from(VALUES) | st.text("ab ,;=/\t\x7f\xff", max_size=5),
    st.sampled_from(ENDS),
)
heads = st.builds(
    lambda line, end, host, headers: (line + end + host + "".join(headers) + "\r\n").encode("latin-1"),
    st.sampled_from(LINES),
    st.sampled_from(ENDS),
    st.sampled_from(["Host: x\r\n", "Host: x\r\n", ""]),
    st.lists(header, max_size=5),
)


@given(heads)
def test_plain_head_is_parsed_equally_by_aiohttp(head: bytes) -> None:
    plain = read_head(head, 0, head.find(HEAD_END))
    if plain is None:
        return
    assert plain.raw == head[: len(plain.raw)]
    loop = asyncio.new_event_loop()
    try:
        parser = HttpRequestParser(BaseProtocol(loop), loop, 65536)
        following = b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"
        parsed, upgraded, tail = parser.feed_data(plain.raw + b"." * plain.length + following)
    finally:
        loop.close()
    assert not upgraded
    assert tail == b""
    (message, _), (next_one, _) = parsed
    assert next_one.path == "/next"
    assert (message.method, message.path) == (plain.method.decode(), plain.target.decode())
    assert (message.should_close, message.chunked, message.compression) == (False, False, None)
    assert {name.lower(): value for name, value in message.raw_headers} == plain.headers

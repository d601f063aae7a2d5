"""HTTP/1.1 request heads that can be read in one way only, read without an HTTP library.

A whitelist: whatever is unusual (another version, a header twice, a transfer encoding, an upgrade, bytes that are no ASCII)
is not plain, and its bytes are for an HTTP library to judge. So the two never disagree on where a request ends.
"""

import re
from collections.abc import Mapping

from msgspec import Struct

LINE_END = b"\r\n"
HEAD_END = LINE_END + LINE_END

MOST_HEAD_BYTES = 4096
MOST_HEADERS = 64
"""Below what HTTP libraries limit heads to, so that none of them would refuse what is read here."""

_MOST_DIGITS = 15  # of a length

_HEAD = re.compile(
    rb"(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) (/(?!/)[A-Za-z0-9._~!$&'()*+,;=:@%?/-]*) HTTP/1\.1\r\n"
    rb"((?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~]*\r\n)*)\r\n"  # RFC 9112 section 5, without folded lines
)
_BLANK = b" \t"

_DECISIVE = frozenset({b"transfer-encoding", b"upgrade", b"expect"})
"""Headers that change how a request is framed, or when it may be answered."""


class PlainHead(Struct, frozen=True):
    """`raw` is the head as it came, with the empty line at its end; `headers` by lower-case name. `length` is that of the body,
    `size` of the whole request."""

    raw: bytes
    method: bytes
    target: bytes
    headers: Mapping[bytes, bytes]
    length: int
    size: int


def read_head(data: bytes, start: int, end: int) -> PlainHead | None:
    """The head from `start` to `end`, where `HEAD_END` begins. None if it is not plain."""
    if end - start > MOST_HEAD_BYTES:
        return None
    raw = data[start : end + len(HEAD_END)]
    found = _HEAD.fullmatch(raw)
    if found is None:
        return None
    headers = _headers(found[3])
    if headers is None:
        return None
    announced = headers.get(b"content-length", b"0")
    if not announced.isdigit() or len(announced) > _MOST_DIGITS:
        return None
    length = int(announced)
    return PlainHead(raw, found[1], found[2], headers, length, len(raw) + length)


def _headers(block: bytes) -> dict[bytes, bytes] | None:
    lines = block.split(LINE_END)
    lines.pop()
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip(_BLANK)
    if len(headers) != len(lines) or len(lines) > MOST_HEADERS or not _DECISIVE.isdisjoint(headers) or b"host" not in headers:
        return None
    return headers if headers.get(b"connection", b"keep-alive").lower() == b"keep-alive" else None

"""Why a text cannot be read as JSON, in words that help whoever wrote it."""

import re

_TRUNCATED = "Input data was truncated"
"""What msgspec also says of the first half of a surrogate pair, if fewer bytes follow than the second half has."""

_FIRST_HALF_ALONE = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u|\\\Z)[\s\S]{1,5}\Z")
_TAIL = 64  # bytes in which it is looked for

_LONE_SURROGATE = "JSON is malformed: unexpected end of escaped utf-16 surrogate pair"
"""As msgspec says it where more follows."""


def why_no_json(text: bytes, error: Exception) -> str:
    """`error` is what msgspec raised for it."""
    said = str(error)
    return _LONE_SURROGATE if said == _TRUNCATED and _FIRST_HALF_ALONE.search(text[-_TAIL:]) else said

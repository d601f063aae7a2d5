"""Explains to its author why a text is not valid JSON."""

import re

_TRUNCATED = "Input data was truncated"
"""msgspec also reports this for the first half of a surrogate pair with too few bytes after it."""

_FIRST_HALF_ALONE = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u|\\\Z)[\s\S]{1,5}\Z")
_TAIL = 64  # searched bytes

_LONE_SURROGATE = "JSON is malformed: unexpected end of escaped utf-16 surrogate pair"
"""msgspec's message if more bytes follow."""


def why_no_json(text: bytes, error: Exception) -> str:
    """`error`: the exception of msgspec."""
    reason = str(error)
    return _LONE_SURROGATE if reason == _TRUNCATED and _FIRST_HALF_ALONE.search(text[-_TAIL:]) else reason

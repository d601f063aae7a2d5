"""JSON payloads as Python values."""

import json
from typing import Any

import msgspec

from ropewalk.model.nesting import TOO_DEEP, is_too_deep

MAX_INTEGER_DIGITS = 4300
"""Python refuses to read longer ones."""


def decode_payload(payload: bytes) -> Any:
    """Raises ValueError. A number that is too large is infinite, as in JavaScript and in Python's own json."""
    if is_too_deep(payload):
        raise ValueError(TOO_DEEP)
    try:
        return msgspec.json.decode(payload)
    except msgspec.ValidationError:  # valid JSON with a number out of range
        return json.loads(payload, parse_int=_integer)


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= MAX_INTEGER_DIGITS else float(text)

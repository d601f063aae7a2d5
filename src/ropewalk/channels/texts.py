"""Values to JSON text and back. What JSON cannot say is refused, with the name of what it was meant for."""

from typing import Any

import msgspec

_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def json_bytes(value: object, what: str) -> bytes:
    """Raises TypeError. Dates, UUIDs, dataclasses and msgspec's Structs are written as msgspec writes them."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(f"{what} cannot be written as JSON: {error}") from None


def json_text(value: object, what: str) -> str:
    return json_bytes(value, what).decode()


def lasting_text(value: object, what: str) -> str:
    """The text of a value that must come back as it was, so that nobody finds a string where a date was put."""
    text = json_text(value, what)
    if msgspec.json.decode(text) != value:
        found = type(value).__name__
        raise TypeError(
            f"{what} would not come back as it was: use None, bool, numbers, str, list, dict with str keys, not {found}"
        )
    return text


def json_object(text: str) -> dict[str, Any] | None:
    """None for whatever is no JSON object."""
    try:
        return _decode_object(text)
    except (ValueError, RecursionError):
        return None


def json_value(text: str) -> Any:
    """A text that is no JSON is its own value: somebody else has put it there."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text

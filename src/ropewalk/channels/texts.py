"""Values to JSON text and back. What JSON cannot say is refused, with the name of what it was meant for."""

from typing import Any

import msgspec

from ropewalk.model.nesting import MAX_DEPTH, TOO_DEEP, too_deep

_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def json_bytes(value: object, what: str, limit: int = MAX_DEPTH) -> bytes:
    """Raises TypeError or ValueError. Dates, UUIDs, dataclasses and msgspec's Structs are written as msgspec writes them."""
    try:
        text = msgspec.json.encode(value)
    except RecursionError:
        raise ValueError(f"{what} is {TOO_DEEP}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{what} cannot be written as JSON: {error}") from None
    if too_deep(text, limit):
        raise ValueError(f"{what} is {TOO_DEEP}")
    return text


def json_text(value: object, what: str, limit: int = MAX_DEPTH) -> str:
    return json_bytes(value, what, limit).decode()


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
    """None for whatever is no JSON object, or nested too deeply."""
    try:
        return None if too_deep(text) else _decode_object(text)
    except ValueError:
        return None


def json_value(text: str) -> Any:
    """A text that is no JSON is its own value: somebody else has put it there."""
    try:
        return text if too_deep(text) else msgspec.json.decode(text)
    except ValueError:
        return text

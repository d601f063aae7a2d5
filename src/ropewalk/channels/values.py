"""Values of an application as JSON: texts, state, publications. Errors name what the value was meant for.

State is a dict of values to handlers, and a map of JSON texts to the server. Keys that begin with `$` belong to the server:
handlers neither see nor set them.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec

from ropewalk.model.application import State
from ropewalk.model.messages import SERVER_TYPES, Publication
from ropewalk.model.nesting import MAX_DEPTH, TOO_DEEP, is_too_deep

RESERVED_PREFIX = "$"

_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def json_bytes(value: object, what: str, limit: int = MAX_DEPTH) -> bytes:
    """Raises TypeError or ValueError. Dates, UUIDs, dataclasses and msgspec's Structs are encoded as msgspec does."""
    try:
        text = msgspec.json.encode(value)
    except RecursionError:
        raise ValueError(f"{what} is {TOO_DEEP}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{what} cannot be written as JSON: {error}") from None
    if is_too_deep(text, limit):
        raise ValueError(f"{what} is {TOO_DEEP}")
    return text


def json_text(value: object, what: str, limit: int = MAX_DEPTH) -> str:
    return json_bytes(value, what, limit).decode()


def json_object(text: str) -> dict[str, Any] | None:
    """Returns None for text that is not a JSON object, or is nested too deeply."""
    try:
        return None if is_too_deep(text) else _decode_object(text)
    except ValueError:
        return None


# --- state ------------------------------------------------------------------------------------------------------------


def decode_state(kept: State) -> dict[str, Any]:
    """Returns the state as handlers see it: a new dict, without the keys of the server."""
    return {key: _decode_value(text) for key, text in kept.items() if not key.startswith(RESERVED_PREFIX)}


def state_changes(kept: State, now: Mapping[str, Any], owner: str) -> State:
    """Returns the changed keys; a deleted key has "". `owner` names the dict in errors: "self.state"."""
    changes = {key: "" for key in kept if key not in now and not key.startswith(RESERVED_PREFIX)}
    for key, value in now.items():
        text = _round_trip_text(value, f"{owner}[{_check_key(key, owner)!r}]")
        if kept.get(key) != text:
            changes[key] = text
    return changes


def _decode_value(text: str) -> Any:
    """Text that is not JSON is its own value: an application behind RPC may have set it."""
    try:
        return text if is_too_deep(text) else msgspec.json.decode(text)
    except ValueError:
        return text


def _round_trip_text(value: object, what: str) -> str:
    """Raises TypeError if decoding the text would not return an equal value, as for a date, which would become a string."""
    text = json_text(value, what)
    if msgspec.json.decode(text) != value:
        found = type(value).__name__
        raise TypeError(f"{what} does not survive JSON: use None, bool, numbers, str, list, dict with str keys, not {found}")
    return text


def _check_key(key: object, owner: str) -> str:
    if not isinstance(key, str) or key.startswith(RESERVED_PREFIX):
        raise TypeError(f"{owner} has a key {key!r}: keys are strings that do not begin with {RESERVED_PREFIX!r}")
    return key


# --- publications -----------------------------------------------------------------------------------------------------


def stream_name(stream: str) -> str:
    """Raises TypeError or ValueError for an invalid name."""
    if not isinstance(stream, str):
        raise TypeError(f"a stream's name is a string, not {stream!r}")
    if not stream.encode():  # raises for half a surrogate pair
        raise ValueError("a stream's name cannot be empty")
    return stream


class PublicationOptions(TypedDict, total=False):
    """Optional arguments for publishing."""

    uid: str
    type: str
    transient: bool
    exclude_socket: str


def publication(
    stream: str, data: object, *, exclude_socket: str = "", transient: bool = False, uid: str = "", type: str = ""
) -> Publication:
    """Raises TypeError or ValueError for an invalid name, type or value."""
    if type in SERVER_TYPES:
        raise ValueError(f"a message cannot be of type {type}: the server's own messages have it")
    payload = json_bytes(data, f"the message for {stream_name(stream)}")
    return Publication(stream, payload, exclude_socket, type, transient, uid)

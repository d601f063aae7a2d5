"""How programs and the wire name streams: names, keys, signed names, and the identifiers of cable subscriptions."""

from typing import Any

import msgspec

from ropewalk.core.signatures import unverified_name
from ropewalk.model.errors import UserMistake
from ropewalk.protocol.stream_keys import decode_key, encode_key

PUBSUB = "$pubsub"


def public(stream: str) -> str:
    return _encode({"channel": PUBSUB, "stream_name": stream})


def signed(signed_name: str) -> str:
    return _encode({"channel": PUBSUB, "signed_stream_name": signed_name})


def channel(name: str, params: dict[str, Any]) -> str:
    return _encode({"channel": name, **params})


def parse_key(stream: object) -> bytes:
    """The key of a stream, or a partition key. Raises UserMistake."""
    match stream:
        case bytes():
            return stream
        case str():
            try:
                return encode_key(stream)
            except ValueError as error:
                raise UserMistake(f"{stream!r} is not a stream name: {error}") from error
    raise UserMistake(f"a stream name must be str or bytes, not {stream!r}")


def parse_name(stream: object) -> str:
    """The name of a stream. Text is not checked: the server may know more names. Raises UserMistake."""
    match stream:
        case bytes():
            return decode_key(stream)
        case str():
            return stream
    raise UserMistake(f"a stream name must be str or bytes, not {stream!r}")


def parse_signed(signed_name: object) -> str | None:
    """The name in a signed name, None if it contains none. The signature is not checked. Raises UserMistake."""
    if not isinstance(signed_name, str):
        raise UserMistake(f"a signed name must be str, not {signed_name!r}")
    return unverified_name(signed_name)


def _encode(fields: dict[str, Any]) -> str:
    return msgspec.json.encode(fields).decode()

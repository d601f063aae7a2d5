"""Payloads as JSON text, for clients of the cable and SSE. The conversion is lossless both ways.

A payload of bytes is `{"$bytes":"<base64>"}`. JSON that looks like a tagged form is wrapped as `{"$json":…}`, and so is null,
which Action Cable clients drop. So text passes unchanged between text clients, except that publishing the tagged form
publishes bytes.
"""

import re
from base64 import b64decode, b64encode
from binascii import a2b_base64

import msgspec
from msgspec import Raw

from ropewalk.model.nesting import MAX_DEPTH, TOO_DEEP, is_too_deep
from ropewalk.protocol.broky.frames import Format
from ropewalk.protocol.json_errors import why_no_json

_BYTES, _JSON = "$bytes", "$json"
_TAG, _WRAP = b'{"$bytes":"', b'{"$json":'
_WHITESPACE = b" \t\r\n"
_MAYBE_TAGGED = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"(?:\$|\\u0024)')  # the only key of an object is its first

_check_json = msgspec.json.Decoder(Raw).decode
_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_text = msgspec.json.Decoder(str).decode


def encode_text(payload: bytes, format: Format) -> bytes:
    """The JSON text that a stream keeps for a payload. Raises ValueError for invalid JSON."""
    if format is Format.BYTES:
        return b'%b%b"}' % (_TAG, b64encode(payload))
    if is_too_deep(payload, MAX_DEPTH - 1):  # it may be wrapped in another object
        raise ValueError(f"the payload is {TOO_DEEP}")
    try:
        _check_json(payload.decode())
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise ValueError(f"the payload is not JSON: {why_no_json(payload, error)}") from None
    return b"%b%b}" % (_WRAP, payload) if _needs_wrapping(payload) else payload


def decode_text(text: bytes) -> tuple[bytes, Format]:
    """The payload of a text kept by a stream: the reverse of `encode_text`."""
    if text.startswith(_TAG) and (payload := _as_written_here(text)) is not None:
        return payload, Format.BYTES
    if not _MAYBE_TAGGED.match(text):
        return text, Format.JSON
    match _only_field(text):
        case (_, value) if value is not None:
            return value, Format.BYTES
        case (key, _) if key == _JSON and text.startswith(_WRAP):
            wrapped = text[len(_WRAP) : -1]
            return (wrapped if text.endswith(b"}") and _needs_wrapping(wrapped) else text), Format.JSON
    return text, Format.JSON


def _as_written_here(text: bytes) -> bytes | None:
    """The bytes of a tagged form, if it is spelled exactly as `encode_text` does, which is the usual case."""
    try:
        payload = a2b_base64(text[len(_TAG) : -2])
    except ValueError:
        return None
    return payload if encode_text(payload, Format.BYTES) == text else None


def _needs_wrapping(payload: bytes) -> bool:
    if payload.strip(_WHITESPACE) == b"null":
        return True
    return _MAYBE_TAGGED.match(payload) is not None and _only_field(payload)[0] in (_BYTES, _JSON)


def _only_field(text: bytes) -> tuple[str, bytes | None]:
    """The only key of an object, and the bytes if it is their tagged form; "" for any other JSON."""
    try:
        fields = _fields(text)
    except (msgspec.DecodeError, RecursionError):
        return "", None
    if len(fields) != 1:
        return "", None
    ((key, value),) = fields.items()
    return key, _decode_bytes(value) if key == _BYTES else None


def _decode_bytes(value: Raw) -> bytes | None:
    try:
        encoded = _text(value).encode()
        decoded = b64decode(encoded, validate=True)
    except ValueError:
        return None
    return decoded if b64encode(decoded) == encoded else None

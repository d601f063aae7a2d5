"""Decodes the body of a publish request: publications, or a request to disconnect a user.

Strict: a body of any other shape is refused with the reason and the index in the batch, and nothing of it is published.
"""

import asyncio
import re
from typing import ClassVar

import msgspec
from msgspec import Raw, Struct
from msgspec.json import encode

from ropewalk.model.errors import MalformedPublication
from ropewalk.model.limits import Limits
from ropewalk.model.messages import SERVER_TYPES, Publication, RemoteDisconnect
from ropewalk.model.nesting import MAX_DEPTH, TOO_DEEP, is_too_deep
from ropewalk.model.refusals import Refusal
from ropewalk.protocol.json_errors import why_no_json
from ropewalk.protocol.stream_keys import MARK, is_name

MAX_UID_BYTES = 256

LARGE_BYTES = 64 * 1024
"""Larger bodies are decoded in pieces: many small publications would block the event loop for tens of milliseconds."""

ENTRIES_AT_ONCE = 250

_JSON_WHITESPACE = b" \t\r\n"
_BATCH_INDEX = re.compile(r" - at `\$\[(\d+)\]")


class PublicationLimits(Struct, frozen=True):
    """Limits of one publish request."""

    max_stream_name: int = Limits().max_stream_name
    max_batch: int = 1000
    max_publish_size: int = Limits().max_payload


class _Meta(Struct):
    exclude_socket: str | None = None
    broadcast_type: str | None = None
    transient: bool | None = None


class _Disconnect(Struct):
    identifier: str
    reconnect: bool | None = None


class _StrictMeta(_Meta, forbid_unknown_fields=True):
    pass


class _StrictDisconnect(_Disconnect, forbid_unknown_fields=True):
    pass


class _Entry(Struct):
    """Both shapes, so that one pass decodes the body. Null counts as absent; unknown keys are ignored."""

    stream: str | None = None
    data: Raw = Raw(b"null")
    meta: _Meta | None = None
    uid: str | None = None
    partition_key: str | None = None
    command: str | None = None
    payload: _Disconnect | None = None


class _StrictEntry(_Entry, forbid_unknown_fields=True):
    """For bodies without unknown keys, which cannot nest deeply, so their depth need not be measured."""

    meta: _StrictMeta | None = None
    payload: _StrictDisconnect | None = None


class _BatchEntry(_Entry, kw_only=True):
    """A batch has only publications. Decoding stops at the first invalid entry, not after a megabyte of `{}`."""

    stream: str | None


class _StrictBatchEntry(_StrictEntry, kw_only=True, forbid_unknown_fields=True):
    stream: str | None


class _TooMany(Exception):
    """More entries than a batch may have."""


class _Counted(Struct):
    """Counts entries that have a stream, and stops decoding at the first one over the limit. `left` is set before each
    decoding."""

    stream: Raw
    left: ClassVar[int] = 0

    def __post_init__(self) -> None:
        _Counted.left -= 1
        if _Counted.left < 0:
            raise _TooMany


_AROUND = 2  # nesting levels of the protocol: a batch, and a publication in it

_strict_decoder: msgspec.json.Decoder[_StrictEntry | list[_StrictBatchEntry]] = msgspec.json.Decoder(
    _StrictEntry | list[_StrictBatchEntry]
)
_strict_entry_decoder: msgspec.json.Decoder[_StrictBatchEntry] = msgspec.json.Decoder(_StrictBatchEntry)
_entry_decoder: msgspec.json.Decoder[_BatchEntry] = msgspec.json.Decoder(_BatchEntry)
_counting_decoder: msgspec.json.Decoder[list[_Counted]] = msgspec.json.Decoder(list[_Counted])
_list_decoder: msgspec.json.Decoder[list[Raw]] = msgspec.json.Decoder(list[Raw])
_body_decoder: msgspec.json.Decoder[_Entry | list[_BatchEntry]] = msgspec.json.Decoder(_Entry | list[_BatchEntry])

# Decoding to Raw is the cheapest check of a JSON text: about half the time of a full decode. It checks the whole grammar
# (numbers, escapes, surrogate pairs, trailing text) except two things: UTF-8, which is valid because the text is from a
# decoded str; and the range of numbers, which is intended, because they are passed on as text.
_check_json = msgspec.json.Decoder(Raw).decode
_read_text = msgspec.json.Decoder(str).decode


async def decode_gently(body: bytes, limits: PublicationLimits, key: str = "") -> list[Publication] | RemoteDisconnect:
    """Like `decode`, but yields to the event loop between pieces of a large batch."""
    if len(body) <= LARGE_BYTES or body.lstrip(_JSON_WHITESPACE)[:1] != b"[":
        return decode(body, limits, key)
    check_uid(key, "Idempotency-Key")
    entries = _raw_entries(body, limits.max_batch)
    _check_number(len(entries), limits)
    publications: list[Publication] = []
    for index, entry in enumerate(entries):
        if index % ENTRIES_AT_ONCE == 0:
            await asyncio.sleep(0)
        publications.append(_publication(_batch_entry(entry, index), limits, key and f"{key}:{index}", index))
    return publications


def decode(body: bytes, limits: PublicationLimits, key: str = "") -> list[Publication] | RemoteDisconnect:
    """`key`: the uid of publications without their own. Raises MalformedPublication."""
    check_uid(key, "Idempotency-Key")
    match _entries(body):
        case list() as entries:
            _check_number(len(entries), limits)
            return [_publication(entry, limits, key and f"{key}:{index}", index) for index, entry in enumerate(entries)]
        case entry if entry.command is None:
            return [_publication(entry, limits, key, 0)]
        case entry:
            return _order(entry)


def _raw_entries(body: bytes, most: int) -> list[Raw]:
    """The JSON text of each entry, at most `most`."""
    _Counted.left = most
    try:
        _counting_decoder.decode(body)
        return _list_decoder.decode(body)
    except _TooMany:
        raise MalformedPublication(f"a batch holds 1 to {most} publications, this one more") from None
    except _UNDECODABLE as error:
        raise _explain(error, body) from None


def _check_number(entries: int, limits: PublicationLimits) -> None:
    if not 1 <= entries <= limits.max_batch:
        raise MalformedPublication(f"a batch holds 1 to {limits.max_batch} publications, this one {entries}")


def _batch_entry(entry: Raw, index: int) -> _Entry:
    try:
        try:
            return _strict_entry_decoder.decode(entry)
        except msgspec.ValidationError:
            if is_too_deep(bytes(entry), MAX_DEPTH + _AROUND - 1):
                raise _too_deep() from None
            return _entry_decoder.decode(entry)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        raise MalformedPublication(f"not a publication: {what} - at `$[{index}]{place or '`'}", index) from None
    except UnicodeDecodeError:
        raise MalformedPublication("body is not UTF-8") from None


def _entries(body: bytes) -> _Entry | list[_StrictBatchEntry] | list[_BatchEntry]:
    try:
        try:
            return _strict_decoder.decode(body)
        except msgspec.ValidationError:
            if is_too_deep(body, MAX_DEPTH + _AROUND):
                raise _too_deep() from None
            return _body_decoder.decode(body)
    except _UNDECODABLE as error:
        raise _explain(error, body) from None


_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _explain(error: Exception, body: bytes) -> MalformedPublication:
    """The refusal for an error of msgspec."""
    match error:
        case msgspec.ValidationError():
            place = _BATCH_INDEX.search(str(error))
            return MalformedPublication(f"not a publication: {error}", int(place[1]) if place else 0)
        case UnicodeDecodeError():
            return MalformedPublication("body is not UTF-8")
        case RecursionError():
            return _too_deep()
    return MalformedPublication(f"body is not JSON: {why_no_json(body, error)}")


def _too_deep() -> MalformedPublication:
    return MalformedPublication(f"body is {TOO_DEEP}", refusal=Refusal.NESTING)


def _publication(entry: _Entry, limits: PublicationLimits, fallback_uid: str, index: int) -> Publication:
    if entry.command is not None:
        raise MalformedPublication("a command cannot be part of a batch", index)
    stream = check_stream(entry.stream, limits.max_stream_name, index)
    if entry.uid:
        check_uid(entry.uid, "uid", index)
    if entry.partition_key and len(entry.partition_key.encode()) > limits.max_stream_name:
        raise MalformedPublication(f"partition_key is longer than {limits.max_stream_name} bytes", index)
    meta = entry.meta or _Meta()
    return Publication(
        stream,
        encode_payload(_data_text(entry.data, index), index),
        meta.exclude_socket or "",
        check_type(meta.broadcast_type, index),
        meta.transient or False,
        entry.uid or fallback_uid,
        partition_key=entry.partition_key or "",
    )


def check_type(broadcast_type: str | None, index: int) -> str:
    if broadcast_type in SERVER_TYPES:
        raise MalformedPublication(f"broadcast_type {broadcast_type} is reserved for the server: use another", index)
    return broadcast_type or ""


def check_stream(name: str | None, longest: int, index: int) -> str:
    if not name:
        raise MalformedPublication("stream must be a non-empty string", index)
    if len(name.encode()) > longest:
        raise MalformedPublication(f"stream is longer than {longest} bytes", index)
    if name.startswith(MARK) and not is_name(name):
        raise MalformedPublication(f"a stream name that begins with {MARK} must be the valid encoding of a key", index)
    return name


def _data_text(data: Raw, index: int) -> str:
    """The message: JSON text in a string, or plain JSON."""
    raw = bytes(data)
    try:
        if raw.startswith(b'"'):
            return _read_text(raw)
        if raw != b"null":
            return raw.decode()
    except UnicodeDecodeError:
        raise MalformedPublication("body is not UTF-8", index) from None
    raise MalformedPublication("data is missing: it must be JSON, plain or in a string", index)


def encode_payload(data: str, index: int) -> bytes:
    """JSON text unchanged; any other text, and null, which clients drop, as a JSON string."""
    text = data.encode().strip(_JSON_WHITESPACE)
    if is_too_deep(text):
        raise MalformedPublication(f"data is {TOO_DEEP}", index, Refusal.NESTING)
    try:
        _check_json(text)
    except msgspec.DecodeError:
        return encode(data)
    return encode(data) if text == b"null" else text


def check_uid(uid: str, name: str, index: int = 0) -> None:
    try:
        size = len(uid.encode())
    except UnicodeEncodeError:  # a header may have bytes that are not text
        raise MalformedPublication(f"{name} is not UTF-8", index) from None
    if size > MAX_UID_BYTES:
        raise MalformedPublication(f"{name} is longer than {MAX_UID_BYTES} bytes", index)


def _order(entry: _Entry) -> RemoteDisconnect:
    if entry.stream is not None:
        raise MalformedPublication("a body has either a stream or a command, not both")
    if entry.command != "disconnect":
        raise MalformedPublication("the only known command is disconnect")
    if entry.payload is None or not entry.payload.identifier:
        raise MalformedPublication("disconnect needs a payload with a non-empty identifier")
    return RemoteDisconnect(entry.payload.identifier, entry.payload.reconnect is not False)

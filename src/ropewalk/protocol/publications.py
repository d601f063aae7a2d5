"""The body of a publish request: bytes to publications, or to the order to disconnect somebody.

Strict: whatever is not exactly one of the known shapes is refused with the reason and its place in the batch, and then
nothing of the body counts.
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
"""A body that is larger is decoded in pieces. One of tiny publications would hold the event loop for tens of milliseconds."""

ENTRIES_AT_ONCE = 250

_JSON_WHITESPACE = b" \t\r\n"
_BATCH_INDEX = re.compile(r" - at `\$\[(\d+)\]")


class PublicationLimits(Struct, frozen=True):
    """How much one publish request may bring."""

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
    """Both shapes at once, so that one pass reads the body. A null is as good as an absent key; unknown keys are ignored."""

    stream: str | None = None
    data: Raw = Raw(b"null")
    meta: _Meta | None = None
    uid: str | None = None
    partition_key: str | None = None
    command: str | None = None
    payload: _Disconnect | None = None


class _StrictEntry(_Entry, forbid_unknown_fields=True):
    """What a body without unknown keys is read as: such a body has no room for deep nesting, and need not be measured."""

    meta: _StrictMeta | None = None
    payload: _StrictDisconnect | None = None


class _BatchEntry(_Entry, kw_only=True):
    """In a batch there are publications only. Decoding ends at the first that is none, and not after a megabyte of `{}`."""

    stream: str | None


class _StrictBatchEntry(_StrictEntry, kw_only=True, forbid_unknown_fields=True):
    stream: str | None


class _TooMany(Exception):
    """More entries than a batch may have."""


class _Counted(Struct):
    """Nothing of an entry is looked at but that it names a stream. Decoding ends with the first entry that is one too many,
    however many follow. `left` is set before each decoding."""

    stream: Raw
    left: ClassVar[int] = 0

    def __post_init__(self) -> None:
        _Counted.left -= 1
        if _Counted.left < 0:
            raise _TooMany


_AROUND = 2  # a batch, and in it a publication, around what a publisher says

_strict_decoder: msgspec.json.Decoder[_StrictEntry | list[_StrictBatchEntry]] = msgspec.json.Decoder(
    _StrictEntry | list[_StrictBatchEntry]
)
_strict_entry_decoder: msgspec.json.Decoder[_StrictBatchEntry] = msgspec.json.Decoder(_StrictBatchEntry)
_entry_decoder: msgspec.json.Decoder[_BatchEntry] = msgspec.json.Decoder(_BatchEntry)
_counting_decoder: msgspec.json.Decoder[list[_Counted]] = msgspec.json.Decoder(list[_Counted])
_list_decoder: msgspec.json.Decoder[list[Raw]] = msgspec.json.Decoder(list[Raw])
_body_decoder: msgspec.json.Decoder[_Entry | list[_BatchEntry]] = msgspec.json.Decoder(_Entry | list[_BatchEntry])

# Decoding to Raw is the cheapest check of a JSON text (about half the time of a full decode, nothing is built). It was
# found to check the whole grammar (numbers, escapes, surrogate pairs, trailing text), and to leave two things unchecked:
# UTF-8, which holds already because the text comes out of a decoded str; and the range of numbers, which is as wanted:
# they are passed on as they are written.
_check_json = msgspec.json.Decoder(Raw).decode
_read_text = msgspec.json.Decoder(str).decode


async def decode_gently(body: bytes, limits: PublicationLimits, key: str = "") -> list[Publication] | RemoteDisconnect:
    """The same as `decode`, with turns of the event loop in between where the body is a large batch."""
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
    """`key` gives a uid to publications that carry none of their own. Raises MalformedPublication."""
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
    """Each as its JSON text, at most so many."""
    _Counted.left = most
    try:
        _counting_decoder.decode(body)
        return _list_decoder.decode(body)
    except _TooMany:
        raise MalformedPublication(f"a batch holds 1 to {most} publications, this one more") from None
    except msgspec.ValidationError as error:
        raise _no_publication(error) from None
    except UnicodeDecodeError:
        raise MalformedPublication("body is not UTF-8") from None
    except msgspec.DecodeError as error:
        raise MalformedPublication(f"body is not JSON: {why_no_json(body, error)}") from None
    except RecursionError:
        raise _too_deep() from None


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
    except msgspec.ValidationError as error:
        raise _no_publication(error) from None
    except UnicodeDecodeError:
        raise MalformedPublication("body is not UTF-8") from None
    except msgspec.DecodeError as error:
        raise MalformedPublication(f"body is not JSON: {why_no_json(body, error)}") from None
    except RecursionError:
        raise _too_deep() from None


def _no_publication(error: msgspec.ValidationError) -> MalformedPublication:
    place = _BATCH_INDEX.search(str(error))
    return MalformedPublication(f"not a publication: {error}", int(place[1]) if place else 0)


def _too_deep() -> MalformedPublication:
    return MalformedPublication(f"body is {TOO_DEEP}", refusal=Refusal.NESTING)


def _publication(entry: _Entry, limits: PublicationLimits, fallback_uid: str, index: int) -> Publication:
    if entry.command is not None:
        raise MalformedPublication("a command cannot be part of a batch", index)
    stream = stream_of(entry.stream, limits.max_stream_name, index)
    if entry.uid:
        check_uid(entry.uid, "uid", index)
    if entry.partition_key and len(entry.partition_key.encode()) > limits.max_stream_name:
        raise MalformedPublication(f"partition_key is longer than {limits.max_stream_name} bytes", index)
    meta = entry.meta or _Meta()
    return Publication(
        stream,
        payload_of(_text_of(entry.data, index), index),
        meta.exclude_socket or "",
        type_of(meta.broadcast_type, index),
        meta.transient or False,
        entry.uid or fallback_uid,
        partition_key=entry.partition_key or "",
    )


def type_of(broadcast_type: str | None, index: int) -> str:
    if broadcast_type in SERVER_TYPES:
        raise MalformedPublication(f"broadcast_type {broadcast_type} is what the server itself says: take another word", index)
    return broadcast_type or ""


def stream_of(name: str | None, longest: int, index: int) -> str:
    if not name:
        raise MalformedPublication("stream must be a non-empty string", index)
    if len(name.encode()) > longest:
        raise MalformedPublication(f"stream is longer than {longest} bytes", index)
    if name.startswith(MARK) and not is_name(name):
        raise MalformedPublication(f"a stream whose name begins with {MARK} stands for bytes, and none have this one", index)
    return name


def _text_of(data: Raw, index: int) -> str:
    """Publishers send the message as a JSON text in a string. JSON that was not put into a string is that text itself."""
    raw = bytes(data)
    try:
        if raw.startswith(b'"'):
            return _read_text(raw)
        if raw != b"null":
            return raw.decode()
    except UnicodeDecodeError:
        raise MalformedPublication("body is not UTF-8", index) from None
    raise MalformedPublication("data is missing: JSON, as a text or as it is", index)


def payload_of(data: str, index: int) -> bytes:
    """JSON text as it was written; anything else, and null (which clients drop), as a JSON string of itself."""
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
    except UnicodeEncodeError:  # a header may bring bytes that are no text
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

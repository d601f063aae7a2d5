"""Forwards pushed runs without decoding: a new head, and the rest in one slice.

A forwarded run passes the verifier of FlatBuffers for C++, so a producer cannot break the connections of subscribers. Every
field that a subscriber reads is checked, and everything before the vectors is rewritten. A run of another layout, or one that
fails a check here, is left to `runs`, which decodes it and reports errors.
"""

from struct import Struct, unpack_from

from msgspec.structs import replace

from ropewalk.model.messages import Registered, TransientRun
from ropewalk.protocol.broky.frames import Format, Run
from ropewalk.protocol.broky.ksuid import KSUID_BYTES
from ropewalk.protocol.broky.runs import decode, encode_run, split_payloads
from ropewalk.protocol.broky.tables import frame_prefix
from ropewalk.protocol.broky.texts import encode_text

PREFIX = frame_prefix(Run)
MIN_RUN_BYTES = 124
"""Size of the head of a run, before its vectors."""

peek = Struct("<I76xIIII").unpack_from
"""Reads from a run on the fast path: its size, ref, count, and the offsets of its key and its partition key."""

KEY_AT = 88

_fields = Struct("<9IB3xI").unpack_from  # from the ref on
_FIELDS_AT = 80
_HEAD = Struct("<I60sQQ9IB3xI").pack
_length = Struct("<I").unpack_from

NO_PARTITION, _NO_SIZES, _NO_TIMES, _NO_UID, _NO_EPOCH, _NO_PAYLOAD = (120 - at for at in (92, 96, 100, 104, 108, 112))


def forwarded(data: bytes, start: int, end: int, now: int, most_payload: int, most_partition: int) -> bytes | None:
    """The run from `start` to `end` of `data` as subscribers receive it. Its prefix, size and key were checked.

    None for an invalid run, one whose format is not bytes, or one over the limits.
    """
    _, count, key, partition, sizes, times, uid, epoch, payload, kind, empty = _fields(data, start + _FIELDS_AT)
    if kind or empty or epoch != _NO_EPOCH or (end - start) & 7:
        return None
    if payload == _NO_PAYLOAD:
        length = 0
    else:
        length = _checked(data, start, start + 112 + payload, end, 1)
        if not 0 <= length <= most_payload:
            return None
    if sizes == _NO_SIZES:
        if count != 1:
            return None
    elif (
        _checked(data, start, start + 96 + sizes, end, 4) != count
        or not count
        or sum(unpack_from(f"<{count}I", data, start + 100 + sizes)) != length
    ):
        return None
    if partition != NO_PARTITION and not 0 <= _checked(data, start, start + 92 + partition, end, 1) <= most_partition:
        return None
    if uid != _NO_UID and _checked(data, start, start + 104 + uid, end, 1) not in (0, KSUID_BYTES * count):
        return None
    if times != _NO_TIMES and _checked(data, start, start + 100 + times, end, 8) not in (0, count):
        return None
    head = _HEAD(end - start - 4, PREFIX, 0, now, 0, count, key, partition, sizes, times, uid, _NO_EPOCH, payload, 0, 0)
    return head + data[start + MIN_RUN_BYTES : end]


def _checked(data: bytes, start: int, at: int, end: int, width: int) -> int:
    """The length of a vector, or -1 if it is outside its run or not aligned."""
    if at < start + MIN_RUN_BYTES or at > end - 4 or (at - start) & 3:
        return -1
    length: int = _length(data, at)[0]
    if at + 4 + length * width > end or (width == 8 and length and (at + 4 - start) & 7):
        return -1
    return length


def rebuilt(run: Run, now: int) -> bytes:
    """A decoded run as subscribers receive it."""
    return encode_run(replace(run, ref=0, offset=0, ts_broker=now, epoch=b""))


def take_apart(run: TransientRun) -> list[Registered]:
    """Its messages as JSON text, for clients of the cable and SSE."""
    body = decode(run.frame)
    assert isinstance(body, Run)
    return [
        Registered(run.stream, encode_text(payload, Format(body.format)), run.timestamp) for payload in split_payloads(body)
    ]

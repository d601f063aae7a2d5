"""Runs that are passed on as they came: a new head, and the rest in one slice.

Whatever is passed on passes the verifier of FlatBuffers for C++: no producer hangs up other people's subscribers. So all that a
subscriber follows is checked here, and everything up to the vectors is written anew. A run that is not of the fast layout, or
that needs a closer look, is left to `runs` and `pushes`, which say what is wrong with it.
"""

from struct import Struct, unpack_from

from msgspec.structs import replace

from ropewalk.model.messages import Registered, TransientRun
from ropewalk.protocol.broky.frames import Format, Run
from ropewalk.protocol.broky.ksuid import KSUID_BYTES
from ropewalk.protocol.broky.runs import decode, encode_run, payloads_of
from ropewalk.protocol.broky.tables import prefix_of
from ropewalk.protocol.broky.texts import text_of

PREFIX = prefix_of(Run)
SHORTEST = 124
"""Bytes of a run before its vectors: all of its head."""

peek = Struct("<I76xIIII").unpack_from
"""Of a run on the fast path: its size, ref, count, how far behind byte 88 its key is, and the same of the field that follows:
its partition key."""

KEY_AT = 88

_fields = Struct("<9IB3xI").unpack_from  # from the ref on
_FIELDS_AT = 80
_HEAD = Struct("<I60sQQ9IB3xI").pack
_length = Struct("<I").unpack_from

NO_PARTITION, _NO_SIZES, _NO_TIMES, _NO_UID, _NO_EPOCH, _NO_PAYLOAD = (120 - at for at in (92, 96, 100, 104, 108, 112))


def forwarded(data: bytes, start: int, end: int, now: int, most_payload: int, most_partition: int) -> bytes | None:
    """The run from `start` to `end` of `data`, whose prefix, size and key were checked, as subscribers get it at `now`.

    None for one that is not sound, not of bytes, or has more bytes of payload or of a partition key than these.
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
    return head + data[start + SHORTEST : end]


def _checked(data: bytes, start: int, at: int, end: int, width: int) -> int:
    """The length of a vector that is inside its run and aligned in it; -1 otherwise."""
    if at < start + SHORTEST or at > end - 4 or (at - start) & 3:
        return -1
    length: int = _length(data, at)[0]
    if at + 4 + length * width > end or (width == 8 and length and (at + 4 - start) & 7):
        return -1
    return length


def rebuilt(run: Run, now: int) -> bytes:
    """A run that was read and checked, as subscribers get it."""
    return encode_run(replace(run, ref=0, offset=0, ts_broker=now, epoch=b""))


def take_apart(run: TransientRun) -> list[Registered]:
    """Its messages, for clients that have text."""
    body = decode(run.frame)
    assert isinstance(body, Run)
    return [Registered(run.stream, text_of(payload, Format(body.format)), run.timestamp) for payload in payloads_of(body)]

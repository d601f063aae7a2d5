"""Runs on the fast path: a fixed layout that begins with a constant, followed by one `pack`. And runs as publications.

`tables` decodes runs of any other layout. Every run is checked before it is used.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise, repeat
from struct import Struct, pack

from ropewalk.model.errors import MalformedPublication
from ropewalk.model.messages import Publication
from ropewalk.protocol.broky.frames import Body, Format, Run
from ropewalk.protocol.broky.ksuid import KSUID_BYTES, ksuid_text
from ropewalk.protocol.broky.tables import checked_vector, frame_prefix, malformed, numbers, read
from ropewalk.protocol.broky.texts import encode_text
from ropewalk.protocol.publications import PublicationLimits, check_stream
from ropewalk.protocol.stream_keys import decode_key

_PREFIX = frame_prefix(Run)
_FIELDS = Struct("<QQ9IB3xI")  # offset, ts_broker, ref, count, seven vectors, format, and the vector all absent ones share
_FIELDS_AT = 4 + len(_PREFIX)
_KEY, _PARTITION, _SIZES, _TIMES, _UID, _EPOCH, _PAYLOAD = range(88, 116, 4)
_EMPTY = 120
_TAIL = 124
_PADS = (b"", b"\0\0\0", b"\0\0", b"\0")
# In the order of the tail, each with its index among the fields and the width of its elements. The widest first, for alignment;
# the epoch after the payload, so that adding it moves no other vector.
_COLUMNS = tuple(
    ((at - _KEY) // 4, at, width)
    for at, width in ((_TIMES, 8), (_SIZES, 4), (_UID, 1), (_PARTITION, 1), (_KEY, 1), (_PAYLOAD, 1), (_EPOCH, 1))
)
_ABSENT = [_EMPTY - at for at in (_KEY, _PARTITION, _SIZES, _TIMES, _UID, _EPOCH, _PAYLOAD)]

_length = Struct("<I").pack


def encode_run(run: Run) -> bytes:
    """A complete frame. Raises `struct.error` for a number out of range."""
    times = sizes = b""
    if run.ts_producer:
        times = pack(f"<{len(run.ts_producer)}Q", *run.ts_producer)
    if run.sizes:
        sizes = pack(f"<{len(run.sizes)}I", *run.sizes)
    pieces: list[bytes] = []
    places = _ABSENT.copy()
    end = _TAIL
    columns = (times, sizes, run.uid, run.key_partition, run.key, run.payload, run.epoch)
    for (column, at, width), data in zip(_COLUMNS, columns, strict=True):
        if data:
            size = len(data)
            places[column] = end - at
            pad = _PADS[size & 3]
            pieces += (_length(size // width), data, pad)
            end += 4 + size + len(pad)
    last = bytes(-end & 7)
    fields = _FIELDS.pack(run.offset, run.ts_broker, run.ref, run.count, *places, run.format, 0)
    return b"".join((_length(end + len(last) - 4), _PREFIX, fields, *pieces, last))


def build_run(
    key: bytes,
    payloads: Sequence[bytes],
    ref: int = 0,
    format: Format = Format.BYTES,
    key_partition: bytes = b"",
    uid: bytes = b"",
    ts_producer: tuple[int, ...] = (),
) -> Run:
    """A push of these messages."""
    count = len(payloads)
    sizes = tuple(map(len, payloads)) if count > 1 else ()
    payload = b"".join(payloads)
    return Run(ref, count, 0, 0, key, key_partition, sizes, ts_producer, uid, b"", payload, format)


def split_payloads(run: Run) -> list[bytes]:
    """The payloads of a checked run."""
    if not run.sizes:
        return [run.payload]
    return [run.payload[start:stop] for start, stop in pairwise(accumulate(run.sizes, initial=0))]


def decode(frame: bytes) -> Body:
    """Decode a complete frame, with its size field. Raises MalformedFrame."""
    if len(frame) < _TAIL or not frame.startswith(_PREFIX, 4):
        body = read(frame)
        if isinstance(body, Run):
            _check(body)
        return body
    if int.from_bytes(frame[:4], "little") != len(frame) - 4:
        raise malformed("the frame does not have the size it states")
    offset, ts_broker, ref, count, key, partition, sizes, times, uid, epoch, payload, kind, empty = _FIELDS.unpack_from(
        frame, _FIELDS_AT
    )
    if empty:
        raise malformed("the empty vector is not empty")
    if kind > Format.JSON:
        raise malformed(f"unknown format: {kind}")
    run = Run(
        ref,
        count,
        offset,
        ts_broker,
        _vector(frame, _KEY + key),
        _vector(frame, _PARTITION + partition),
        numbers(_vector(frame, _SIZES + sizes, 4), "I"),
        numbers(_vector(frame, _TIMES + times, 8), "Q"),
        _vector(frame, _UID + uid),
        _vector(frame, _EPOCH + epoch),
        _vector(frame, _PAYLOAD + payload),
        Format(kind),
    )
    _check(run)
    return run


def _vector(frame: bytes, at: int, width: int = 1) -> bytes:
    if at == _EMPTY:
        return b""
    if at < _TAIL:
        raise malformed("a vector overlaps the fields")
    return checked_vector(frame, at + 4, width)


def _check(run: Run) -> None:
    """Rules that the schema does not express."""
    count = run.count
    if not count:
        raise malformed("the run has no message")
    if not run.sizes:
        if count != 1:
            raise malformed("a run of several messages needs their sizes")
    elif len(run.sizes) != count or sum(run.sizes) != len(run.payload):
        raise malformed("the sizes of a run do not fit its count or its payload")
    if len(run.ts_producer) not in (0, count):
        raise malformed("ts_producer has a time for each message, or none")
    if len(run.uid) not in (0, KSUID_BYTES * count):
        raise malformed(f"uid has {KSUID_BYTES} bytes for each message, or none")


def run_publications(run: Run, limits: PublicationLimits) -> list[Publication]:
    """The publications of a checked run. All of them can be registered, or none. Raises MalformedPublication."""
    if run.count > limits.max_batch:
        raise MalformedPublication(f"a run of more than {limits.max_batch} messages", limits.max_batch)
    stream = check_stream(decode_key(run.key), limits.max_stream_name, 0)
    partition = decode_key(run.key_partition)
    if len(partition.encode()) > limits.max_stream_name:
        raise MalformedPublication(f"key_partition is longer than {limits.max_stream_name} bytes")
    return [
        Publication(stream, _text(run, payload, index, limits), uid=_uid(run, index), partition_key=partition, ts_producer=time)
        for index, (payload, time) in enumerate(zip(split_payloads(run), run.ts_producer or repeat(0), strict=False))
    ]


def _text(run: Run, payload: bytes, index: int, limits: PublicationLimits) -> bytes:
    try:
        text = encode_text(payload, run.format)
    except ValueError as error:
        raise MalformedPublication(str(error), index) from None
    if len(text) > limits.max_publish_size:
        raise MalformedPublication(f"a message that takes more than {limits.max_publish_size} bytes as text", index)
    return text


def _uid(run: Run, index: int) -> str:
    return ksuid_text(run.uid[index * KSUID_BYTES : (index + 1) * KSUID_BYTES]) if run.uid else ""

"""The encoding of messages in Redis, in the history of a stream and in packets to its listeners.

An entry is a msgpack array. The script writes its first three elements, because it assigns offset and time. The rest is from
the node that registers it. The last two elements are optional; entries of older versions have neither.
"""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from ropewalk.model.messages import Publication, Registered, message_fields

_encode = Encoder().encode


class Entry(Struct, frozen=True, array_like=True, gc=False):
    """`at` is in milliseconds. A transient message has offset 0. `partition_key` is written by the script; "" if it is the
    stream's name."""

    offset: int
    at: int
    size: int
    payload: bytes
    exclude_socket: str
    broadcast_type: str
    uid: str
    producer: str
    sequence: int
    ts_producer: int = 0
    partition_key: str = ""


class Packet(Struct, frozen=True, array_like=True):
    """Messages to the listeners of a stream, in order, and the counter of the shard after them."""

    epoch: str
    run: str
    generation: str
    counter: int
    entries: list[Entry]


_decode_entry = Decoder(Entry).decode
decode_packet = Decoder(Packet).decode


def encode_body(publication: Publication) -> bytes:
    """The elements after the first three."""
    elements = (
        publication.payload,
        publication.exclude_socket,
        publication.broadcast_type,
        publication.uid,
        publication.producer,
        publication.sequence,
    )
    whole = _encode((*elements, publication.ts_producer) if publication.ts_producer else elements)
    return whole[1:]  # without the array header


def count_elements(publication: Publication) -> int:
    """The number of elements of an entry with this body."""
    return 10 if publication.ts_producer else 9


def registered(stream: str, epoch: str, entry: Entry) -> Registered:
    return Registered(
        stream,
        entry.payload,
        entry.at / 1000,
        epoch if entry.offset else "",
        entry.offset,
        entry.exclude_socket,
        entry.broadcast_type,
        message_fields(entry.uid, entry.ts_producer, entry.partition_key) if entry.offset else None,
    )


def decode_messages(stream: str, epoch: str, entries: Iterable[bytes]) -> tuple[Registered, ...]:
    return tuple(registered(stream, epoch, _decode_entry(entry)) for entry in entries)

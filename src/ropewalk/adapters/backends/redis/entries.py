"""How messages are written in Redis: in the history of a stream, and in what goes out to its listeners.

An entry is a msgpack array. Its first three elements are written by the script, which gives offset and time; the rest comes as
it is from the node that registers it. The last two are left out where they say nothing; entries of older versions have none.
"""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from ropewalk.model.messages import Publication, Registered, message_fields

_encode = Encoder().encode


class Entry(Struct, frozen=True, array_like=True, gc=False):
    """`at` is in milliseconds; a transient message has offset 0. `partition_key` is the stream's, and written by the script;
    "" where it is the stream's name."""

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
    """What listeners of a stream get: messages in order, and how far the shard has come with them."""

    epoch: str
    run: str
    generation: str
    counter: int
    entries: list[Entry]


_decode_entry = Decoder(Entry).decode
decode_packet = Decoder(Packet).decode


def body_of(publication: Publication) -> bytes:
    """What follows the first three elements."""
    elements = (
        publication.payload,
        publication.exclude_socket,
        publication.broadcast_type,
        publication.uid,
        publication.producer,
        publication.sequence,
    )
    whole = _encode((*elements, publication.ts_producer) if publication.ts_producer else elements)
    return whole[1:]  # without the head of the array


def elements_of(publication: Publication) -> int:
    """How many an entry has with this body."""
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


def messages_of(stream: str, epoch: str, entries: Iterable[bytes]) -> tuple[Registered, ...]:
    return tuple(registered(stream, epoch, _decode_entry(entry)) for entry in entries)

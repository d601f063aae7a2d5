"""How messages are written in Redis: in the history of a stream, and in what goes out to its listeners.

An entry is a msgpack array. Its first three elements are written by the script, which gives offset and time; the rest comes as
it is from the node that registers it. Entries are self-contained, so that a reader needs nothing else for a row of a journal.
"""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from ropewalk.model.messages import Publication, Registered

_encode = Encoder().encode


class Entry(Struct, frozen=True, array_like=True, gc=False):
    """`at` is in milliseconds; a transient message has offset 0."""

    offset: int
    at: int
    size: int
    payload: bytes
    exclude_socket: str
    broadcast_type: str
    uid: str
    producer: str
    sequence: int


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
    whole = _encode(
        (
            publication.payload,
            publication.exclude_socket,
            publication.broadcast_type,
            publication.uid,
            publication.producer,
            publication.sequence,
        )
    )
    return whole[1:]  # without the head of an array of six


def registered(stream: str, epoch: str, entry: Entry) -> Registered:
    return Registered(
        stream,
        entry.payload,
        entry.at / 1000,
        epoch if entry.offset else "",
        entry.offset,
        entry.exclude_socket,
        entry.broadcast_type,
    )


def messages_of(stream: str, epoch: str, entries: Iterable[bytes]) -> tuple[Registered, ...]:
    return tuple(registered(stream, epoch, _decode_entry(entry)) for entry in entries)

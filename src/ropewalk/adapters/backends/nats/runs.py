"""The content of a JetStream message of a stream: a run of publications that were registered together.

Invariant: the offsets of a run are `first`, `first` + 1 … in the order of its items. Transient items have no offset.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ropewalk.model.messages import Publication, Registered, message_fields

ITEM_BYTES = 50
"""Overhead of an item besides its payload and text."""

MAX_INT64 = 2**63 - 1


class Item(Struct, frozen=True, array_like=True, gc=False):
    payload: bytes
    exclude_socket: str = ""
    broadcast_type: str = ""
    uid: str = ""
    producer: str = ""
    sequence: int = 0
    transient: bool = False
    ts_producer: int = 0


class Run(Struct, frozen=True, array_like=True):
    """`partition_key` is "" if it is the stream's name. `id` is random; after a timeout the writer looks for it."""

    stream: str
    epoch: str
    first: int
    count: int
    timestamp: float
    partition_key: str
    id: str
    items: tuple[Item, ...]

    @property
    def tip(self) -> int:
        return self.first + self.count - 1

    def messages(self, kept: bool = False) -> list[Registered]:
        """The messages in order. `kept`: without transient ones."""
        found, offset = [], self.first
        for item in self.items:
            if item.transient:
                if not kept:
                    found.append(self._message(item, "", 0))
            else:
                found.append(self._message(item, self.epoch, offset))
                offset += 1
        return found

    def _message(self, item: Item, epoch: str, offset: int) -> Registered:
        fields = message_fields(item.uid, item.ts_producer, self.partition_key) if offset else None
        return Registered(
            self.stream, item.payload, self.timestamp, epoch, offset, item.exclude_socket, item.broadcast_type, fields
        )


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Run)


def encode(run: Run) -> bytes:
    return _encoder.encode(run)


def decode(data: bytes) -> Run:
    return _decoder.decode(data)


def build_item(publication: Publication) -> Item:
    return Item(
        publication.payload,
        publication.exclude_socket,
        publication.broadcast_type,
        publication.uid,
        publication.producer,
        publication.sequence,
        publication.transient,
        publication.ts_producer,
    )


def estimate_size(publication: Publication) -> int:
    """Upper bound of its bytes in a run, for any characters in its text."""
    text = len(publication.exclude_socket) + len(publication.broadcast_type) + len(publication.uid) + len(publication.producer)
    return len(publication.payload) + 4 * text + ITEM_BYTES


def encode_alone(publication: Publication) -> bytes:
    """The largest run that consists of this publication only."""
    run = Run(publication.stream, "e" * 8, MAX_INT64, 1, 1.0, publication.partition_key, "i" * 12, (build_item(publication),))
    return encode(run)


def transient_run(stream: str, messages: Sequence[Registered]) -> Run:
    """A run that is delivered and not stored."""
    items = tuple(Item(message.payload, message.exclude_socket, message.broadcast_type, transient=True) for message in messages)
    return Run(stream, "", 0, 0, messages[0].timestamp, "", "", items)

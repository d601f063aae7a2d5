"""What one JetStream message of a stream holds: a run of publications that were registered together.

Invariant: the offsets of a run are `first`, `first` + 1 … in the order of its items; those that are transient have none.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ropewalk.model.messages import Publication, Registered, message_fields

ITEM_BYTES = 50
"""What an item has beside its payload and its text."""

MOST = 2**63 - 1


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
    """`partition_key` is "" where it is the stream's name. `id` is random: whoever got no answer finds by it what it sent."""

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
        """As they are delivered; `kept`: without those that are not kept."""
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


def item_of(publication: Publication) -> Item:
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


def size_of(publication: Publication) -> int:
    """Bytes that it takes of a run at the most, whatever characters its text has."""
    text = len(publication.exclude_socket) + len(publication.broadcast_type) + len(publication.uid) + len(publication.producer)
    return len(publication.payload) + 4 * text + ITEM_BYTES


def alone(publication: Publication) -> bytes:
    """A run of nothing else, with numbers and random names as long as they get."""
    run = Run(publication.stream, "e" * 8, MOST, 1, 1.0, publication.partition_key, "i" * 12, (item_of(publication),))
    return encode(run)


def transient_run(stream: str, messages: Sequence[Registered]) -> Run:
    """Messages that are only delivered."""
    items = tuple(Item(message.payload, message.exclude_socket, message.broadcast_type, transient=True) for message in messages)
    return Run(stream, "", 0, 0, messages[0].timestamp, "", "", items)

"""Takes one shard out of a store and puts it into another, for a ring of nodes.

Invariant: the shard is put in exactly as it was taken out: positions, epochs, idempotency keys, times, members, sessions. While
it is in neither store nothing of it ends or expires, and no events are published. Taking out and putting in are one step each.

A shard has the streams and presence sets whose names belong to it, and the sessions whose sids do. On a ring the partition key
of a stream follows from its name, so everything that is kept by partition key belongs to the same shard.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import msgspec
from msgspec.structs import replace

from ropewalk.adapters.backends.memory.store import MemoryStore
from ropewalk.model.journal import Row, RowKind, encode_publication_detail
from ropewalk.model.messages import MessageFields, Position, Registered
from ropewalk.model.shards import (
    ExpiredSession,
    MemberContent,
    ProducerContent,
    SessionContent,
    ShardItem,
    StreamContent,
    UidContent,
)

PIECE_BYTES = 256 * 1024
"""Approximate size of a piece. An item that cannot be split is a piece of its own, even if it is larger."""

_OVERHEAD = 100
"""Bytes that an item takes besides its payload, roughly."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[ShardItem]).decode


class ShardContent:
    """One shard that is in no store."""

    def __init__(self, shard: int, items: Iterable[ShardItem] = ()) -> None:
        self.shard = shard
        self.items = list(items)

    def pieces(self, size: int = PIECE_BYTES) -> Iterator[bytes]:
        """All of it, encoded; at least one piece."""
        piece: list[ShardItem] = []
        room = size
        for item in _cut(self.items, size):
            needed = _size(item)
            if piece and needed > room:
                yield _encode(piece)
                piece, room = [], size
            piece.append(item)
            room -= needed
        yield _encode(piece)

    def add(self, piece: bytes) -> None:
        """One that `pieces` gave; all of them in the same order. Raises msgspec.DecodeError."""
        for item in _decode(piece):
            last = self.items[-1] if self.items else None
            if isinstance(item, StreamContent) and isinstance(last, StreamContent) and last.stream == item.stream:
                cast(list[Registered], last.messages).extend(item.messages)
            else:
                self.items.append(item)

    def rows(self) -> list[Row]:
        """The rows for the journal of the new store, so that a recovery restores these streams in their epochs. They have only
        kept messages: streams and producers without any are missing."""
        uids: dict[tuple[str, Position], str] = {}
        producers: dict[Position, tuple[str, int]] = {}
        for item in self.items:
            if isinstance(item, UidContent):
                uids[item.stream, item.position] = item.uid
            elif isinstance(item, ProducerContent):
                producers.update({position: (item.producer, sequence) for sequence, position in item.positions})
        return [
            _row(item, message, uids, producers)
            for item in self.items
            if isinstance(item, StreamContent)
            for message in item.messages
        ]


async def take_out(store: MemoryStore, shard: int) -> ShardContent:
    """Everything of the shard is in the answer and no more in the store. Refuse all calls about it before: this first waits for
    appends that are on their way through the journal. Raises `Unavailable`, and then nothing has happened."""
    await store.streams.append([])
    return taken_out(store, shard)


def taken_out(store: MemoryStore, shard: int) -> ShardContent:
    """The same in one step, of a shard that is not served: no append to it can be under way."""
    return ShardContent(shard, store.take_out(shard))


def put_in(store: MemoryStore, content: ShardContent) -> None:
    """Put it into its new store, or back into the old one. It replaces whatever the store has of the shard, for example from an
    old journal."""
    store.take_out(content.shard)
    store.put_in(content.shard, content.items)


def _cut(items: Iterable[ShardItem], size: int) -> Iterator[ShardItem]:
    """Streams in parts that fit into a piece."""
    for item in items:
        if isinstance(item, StreamContent) and _size(item) > size:
            for messages in _parts(item.messages, size):
                yield replace(item, messages=messages)
        else:
            yield item


def _parts(messages: Sequence[Registered], size: int) -> Iterator[list[Registered]]:
    part: list[Registered] = []
    room = size
    for message in messages:
        needed = _OVERHEAD + len(message.payload)
        if part and needed > room:
            yield part
            part, room = [], size
        part.append(message)
        room -= needed
    yield part


def _size(item: ShardItem) -> int:
    match item:
        case StreamContent():
            return _OVERHEAD + sum(_OVERHEAD + len(message.payload) for message in item.messages)
        case SessionContent() | ExpiredSession():
            return _OVERHEAD + len(item.data)
        case ProducerContent():
            return _OVERHEAD * (1 + len(item.positions))
        case MemberContent():
            return _OVERHEAD * (1 + len(item.seats)) + len(item.member.info)
        case _:
            return _OVERHEAD


def _row(
    content: StreamContent,
    message: Registered,
    uids: dict[tuple[str, Position], str],
    producers: dict[Position, tuple[str, int]],
) -> Row:
    position = Position(message.epoch, message.offset)
    producer, sequence = producers.get(position, ("", 0))
    fields = message.fields or MessageFields()
    return Row(
        RowKind.PUBLISH,
        content.partition_key or content.stream,
        message.timestamp,
        content.stream,
        message.epoch,
        message.offset,
        message.payload,
        uids.get((content.stream, position), fields.uid),
        message.exclude_socket,
        message.broadcast_type,
        detail=encode_publication_detail(fields.ts_producer),
        producer=producer,
        sequence=sequence,
    )

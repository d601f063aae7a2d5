"""The record queue in Redis: rows that the append script stores for the node that writes a journal."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from ropewalk.adapters.backends.redis.entries import Entry
from ropewalk.adapters.backends.redis.shard import Shard
from ropewalk.adapters.backends.redis.store import Store
from ropewalk.model.journal import QueuedRows, Row, RowKind, encode_publication_detail

ADDED_AT_ONCE = 500


class _Registered(Struct, frozen=True, array_like=True):
    """A row written by the append script. Rows added by nodes are msgpack maps instead."""

    key: str
    stream: str
    epoch: str
    entry: Entry


_encode_row = Encoder().encode
_decode_row = Decoder(Row).decode
_decode_registered = Decoder(_Registered).decode
_REGISTERED = 0x94  # header of an array of four elements


class RedisQueue:
    """Implements `ports.RecordQueue` for one node. Every shard has its own queue; the node that claims the first one claims
    them all."""

    def __init__(self, store: Store, node: str, limit: int) -> None:
        self._store = store
        self._node = node
        self._limit = limit
        self._waiting = self._dropped = 0

    async def claim(self, ttl: float) -> bool:
        for shard in self._store.shards:
            if not await self._ask(shard, "claim", self._node, round(ttl * 1000)):
                return False
        return True

    async def read(self, limit: int) -> QueuedRows:
        rows: list[Row] = []
        marks: list[str] = []
        waiting = dropped = 0
        for shard in self._store.shards:
            removed, length, lost, *found = await self._ask(shard, "read", max(0, limit - len(rows)))
            rows += map(_row, found)
            marks.append(str(int(removed) + len(found)))
            waiting, dropped = waiting + int(length), dropped + int(lost)
        self._waiting, self._dropped = waiting, dropped
        return QueuedRows(tuple(rows), " ".join(marks))

    async def remove(self, piece: QueuedRows) -> bool:
        for shard, mark in zip(self._store.shards, piece.mark.split(), strict=True):
            if not await self._ask(shard, "remove", self._node, mark):
                return False
        return True

    async def add(self, rows: Sequence[Row]) -> bool:
        kept = True
        for first in range(0, len(rows), ADDED_AT_ONCE):
            some = map(_encode_row, rows[first : first + ADDED_AT_ONCE])
            kept = bool(await self._ask(self._store.home, "add", self._limit, *some))
        return kept

    def gauges(self) -> dict[str, float]:
        return {"record_queue_rows": self._waiting, "record_queue_dropped_rows": self._dropped}

    async def _ask(self, shard: Shard, what: str, *arguments: Any) -> Any:
        return await shard.ask("queue", [shard.key("x"), shard.key("j")], what, *arguments)


def _row(data: bytes) -> Row:
    if data[0] != _REGISTERED:
        return _decode_row(data)
    found = _decode_registered(data)
    entry = found.entry
    return Row(
        RowKind.PUBLISH,
        found.key,
        entry.at / 1000,
        stream=found.stream,
        epoch=found.epoch,
        offset=entry.offset,
        value=entry.payload,
        uid=entry.uid,
        exclude_socket=entry.exclude_socket,
        broadcast_type=entry.broadcast_type,
        detail=encode_publication_detail(entry.ts_producer),
        producer=entry.producer,
        sequence=entry.sequence,
    )

"""Streams in Redis: appends by group commit, reads by one script each."""

import asyncio
import math
from collections.abc import Sequence
from heapq import merge
from itertools import islice

from msgspec import Struct
from msgspec.msgpack import encode

from ropewalk.adapters.backends.redis.appends import RetentionLimits
from ropewalk.adapters.backends.redis.entries import decode_messages
from ropewalk.adapters.backends.redis.shard import Shard
from ropewalk.adapters.backends.redis.store import Store
from ropewalk.model.errors import PartitionChanged, Unanswered, Unavailable
from ropewalk.model.history import MAX_ANSWER_BYTES, MESSAGE_OVERHEAD_BYTES, Gap, GapReason, HistoryPage, Replay, StreamSummary
from ropewalk.model.messages import Position, Publication, Receipt, Registered

BEFORE_ALL = Position("", 0)
LAST_SECOND = 2.0**43  # in milliseconds it is still exact


class _View(Struct, frozen=True):
    """A stream as read. `trimmed_at`: the time of the newest trimmed message, in milliseconds."""

    stream: str
    epoch: str
    tip: int
    partition_key: str
    trimmed_at: int | None
    kept: int
    messages: tuple[Registered, ...]

    @property
    def oldest(self) -> int:
        return self.tip + 1 - self.kept

    def gap(self, reason: GapReason) -> Gap:
        return Gap(self.stream, reason, self.epoch, self.oldest, self.tip, rest=self.replay() if self.kept else None)

    def replay(self) -> Replay:
        more = bool(self.messages) and self.messages[-1].offset < self.tip
        return Replay(self.stream, self.epoch, self.tip, self.messages, more)


class RedisStreams:
    """Implements `ports.StreamStore`."""

    resolves_unanswered = False  # it only recognises publications with a uid
    confirms_transient = False
    instant = False

    def __init__(self, store: Store, retention: RetentionLimits) -> None:
        self._store = store
        self._retention = retention

    async def append(self, publications: Sequence[Publication]) -> list[Receipt]:
        store = self._store
        if len(store.shards) == 1:
            return await store.appenders[0].append(publications)
        return await self._append_to_shards(publications)

    async def _append_to_shards(self, publications: Sequence[Publication]) -> list[Receipt]:
        """Atomic within each shard; a cluster has several."""
        parts: dict[int, list[int]] = {}
        for place, publication in enumerate(publications):
            parts.setdefault(self._store.shard_index(publication.stream), []).append(place)
        if len(parts) > 1:
            await self._check_partition_keys(publications)
        calls = [self._append(index, [publications[place] for place in places]) for index, places in parts.items()]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        if failures:
            if len(failures) < len(answers) and isinstance(failures[0], Unavailable):
                raise Unanswered(f"some of them may be registered: {failures[0]}")
            raise failures[0]
        receipts: dict[int, Receipt] = {}
        for places, answer in zip(parts.values(), answers, strict=True):
            assert isinstance(answer, list)
            receipts.update(zip(places, answer, strict=True))
        return [receipts[place] for place in range(len(publications))]

    async def _check_partition_keys(self, publications: Sequence[Publication]) -> None:
        """Each shard checks them too. Checking all first prevents a partial append. Raises `PartitionChanged`."""
        named = [each for each in publications if not each.transient]
        if not any(publication.partition_key for publication in named):
            return
        streams = list(dict.fromkeys(publication.stream for publication in named))
        views = await asyncio.gather(*(self._read(stream, "meta") for stream in streams))
        kept = {view.stream: view.partition_key for view in views if view is not None}
        for publication in named:
            stream, key = publication.stream, publication.partition_key
            has = kept.setdefault(stream, key or stream)
            if key and key != has:
                raise PartitionChanged(stream, key, has)

    async def _append(self, index: int, publications: Sequence[Publication]) -> list[Receipt]:
        return await self._store.appenders[index].append(publications)

    async def replay(self, stream: str, position: Position) -> Replay | Gap:
        view = await self._read(stream, "after", position.epoch, position.offset)
        if view is None:
            if position == BEFORE_ALL:
                return Replay(stream, "", 0)
            return Gap(stream, GapReason.EPOCH_CHANGED, "", 1, 0)
        if position.epoch != view.epoch and position != BEFORE_ALL:
            return view.gap(GapReason.EPOCH_CHANGED)
        if position.offset > view.tip:
            return Gap(stream, GapReason.AHEAD, view.epoch, view.oldest, view.tip)
        if position.offset < view.oldest - 1:
            return view.gap(GapReason.TRIMMED)
        return view.replay()

    async def since(self, stream: str, timestamp: float) -> Replay | Gap:
        milliseconds = _milliseconds(timestamp)
        view = await self._read(stream, "since", "", milliseconds)
        if view is None:
            return Replay(stream, "", 0)
        if view.trimmed_at is not None and view.trimmed_at >= milliseconds:
            return view.gap(GapReason.TRIMMED)
        return view.replay()

    async def tip(self, stream: str) -> Position:
        view = await self._read(stream, "meta")
        return BEFORE_ALL if view is None else Position(view.epoch, view.tip)

    async def partition_key(self, stream: str) -> str:
        view = await self._read(stream, "meta")
        return stream if view is None else view.partition_key

    async def page(self, stream: str, after: int, limit: int) -> HistoryPage | None:
        view = await self._read(stream, "page", "", after, limit)
        if view is None:
            return None
        next_offset = view.messages[-1].offset if view.replay().more else None
        return HistoryPage(stream, view.epoch, view.tip, view.oldest, view.messages, next_offset)

    async def summaries(self, after: str, limit: int) -> list[StreamSummary]:
        found: list[StreamSummary] = []
        while len(found) < limit:
            wanted = limit - len(found)
            names = [await _names(shard, after, wanted) for shard in self._store.shards]
            following = list(islice(merge(*names), wanted))
            if not following:
                break
            views = await asyncio.gather(*(self._read(stream, "length") for stream in following))
            found += [
                StreamSummary(view.stream, view.epoch, view.tip, view.oldest, view.kept) for view in views if view is not None
            ]
            after = following[-1]
        return found

    async def _read(self, stream: str, what: str, epoch: str = "", offset: int = 0, most: int = 0) -> _View | None:
        shard = self._store.shard_for(stream)
        limit, ttl, _ = self._retention.of(stream)
        keys = [shard.key("x"), shard.key(f"m:{stream}"), shard.key(f"h:{stream}")]
        answer = await shard.ask(
            "read", keys, encode((limit, ttl, what, epoch, offset, most, MAX_ANSWER_BYTES, MESSAGE_OVERHEAD_BYTES))
        )
        if answer is None:
            return None
        found, tip, partition_key, trimmed_at = (part.decode() for part in answer[:4])
        kept = int(answer[4]) if len(answer) > 4 else 0
        messages = decode_messages(stream, found, answer[5:])
        return _View(stream, found, int(tip), partition_key, int(trimmed_at) if trimmed_at else None, kept, messages)


def _milliseconds(timestamp: float) -> int:
    """Rounded up."""
    return math.ceil(round(min(max(timestamp, 0.0), LAST_SECOND) * 1000, 3))


async def _names(shard: Shard, after: str, most: int) -> list[str]:
    return [name.decode() for name in await shard.ask("names", [shard.key("n")], after, most)]

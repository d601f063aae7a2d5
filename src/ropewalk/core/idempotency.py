"""Registered idempotency keys: uids for a limited time, sequences of producers without limit.

Invariant: a publication is looked up before it gets a position, and stored when it has one.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from ropewalk.core.ring import locate_shard
from ropewalk.model.messages import Position, Publication, Registered
from ropewalk.model.shards import ProducerContent, UidContent

MAX_PRODUCER_POSITIONS = 256
"""Positions kept of one producer in one shard, so that a retry of a recent row returns its original position."""

UNKNOWN_POSITION = Position("", 0)
"""The result for an old duplicate: it was registered, but its position is no longer known."""


class Dedup:
    """The positions of registered uids by (stream, uid). A key is known for `ttl` seconds from its first registration, unless
    `limit` newer ones were added. All keys have the same TTL, so they expire in order."""

    __slots__ = ("_known", "_limit", "_ttl")

    def __init__(self, ttl: float, limit: int) -> None:
        self._ttl = ttl
        self._limit = limit
        self._known: OrderedDict[tuple[str, str], tuple[Position, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, stream: str, uid: str, now: float) -> Position | None:
        """The position of the first publication with this uid, while it is known."""
        known = self._known.get((stream, uid))
        return known[0] if known is not None and now < known[1] else None

    def remember(self, stream: str, uid: str, position: Position, now: float) -> None:
        """Call it only for a key that `find` does not return. The oldest key is dropped when the limit is reached."""
        key = (stream, uid)
        self._known.pop(key, None)  # an expired entry would keep its old place in the order
        self._known[key] = (position, now + self._ttl)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)

    def take_out(self, belongs: Callable[[str], bool]) -> list[UidContent]:
        """Remove and return the uids of the streams selected by `belongs`, oldest first."""
        taken = [UidContent(*key, *known) for key, known in self._known.items() if belongs(key[0])]
        for uid in taken:
            del self._known[uid.stream, uid.uid]
        return taken

    def put_in(self, uids: Iterable[UidContent]) -> None:
        known = [*self._known.items(), *(((each.stream, each.uid), (each.position, each.until)) for each in uids)]
        known.sort(key=lambda item: item[1][1])  # expiry goes in order
        self._known = OrderedDict(known[-self._limit :] if self._limit else [])

    def expire(self, now: float, most: int) -> bool:
        """Remove at most `most` expired keys. Returns whether there may be more of them."""
        while most > 0 and self._known:
            _, until = next(iter(self._known.values()))
            if now < until:
                return False
            self._known.popitem(last=False)
            most -= 1
        return bool(self._known)


class _Line:
    __slots__ = ("last", "positions")

    def __init__(self) -> None:
        self.last = -1
        self.positions: OrderedDict[int, Position] = OrderedDict()


class Producers:
    """The last registered sequence of each producer, by shard, without a time limit: an application may retry after weeks.

    A producer's sequence is registered once and in order within a shard, and a shard can only lose rows from its end. So a
    sequence above the last known one was not registered, and all others were.
    """

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[tuple[str, int], _Line] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def find(self, producer: str, shard: int, sequence: int) -> Position | None:
        """The position of a registered sequence; None if it is not registered."""
        line = self._lines.get((producer, shard))
        if line is None or sequence > line.last:
            return None
        return line.positions.get(sequence, UNKNOWN_POSITION)

    def remember(self, producer: str, shard: int, sequence: int, position: Position) -> None:
        """Call it only for a sequence that `find` does not return."""
        line = self._line(producer, shard)
        line.last = sequence
        line.positions[sequence] = position
        if len(line.positions) > MAX_PRODUCER_POSITIONS:
            line.positions.popitem(last=False)

    def reach(self, producer: str, shard: int, sequence: int) -> None:
        """All sequences up to this one were registered, at unknown positions. Known later ones are kept."""
        line = self._line(producer, shard)
        line.last = max(line.last, sequence)

    def take_out(self, shard: int) -> list[ProducerContent]:
        producers = [producer for producer, of_shard in self._lines if of_shard == shard]
        lines = ((producer, self._lines.pop((producer, shard))) for producer in producers)
        return [ProducerContent(producer, line.last, tuple(line.positions.items())) for producer, line in lines]

    def put_in(self, shard: int, producers: Iterable[ProducerContent]) -> None:
        for content in producers:
            line = self._lines[content.producer, shard] = _Line()
            line.last = content.last
            line.positions.update(content.positions)

    def _line(self, producer: str, shard: int) -> _Line:
        line = self._lines.get((producer, shard))
        if line is None:
            line = self._lines[producer, shard] = _Line()
        return line


class Registrations:
    """`shards` is the number of shards of the journal and of the ring: a producer's sequences are complete per shard.
    `partition_key` returns that of a stream."""

    __slots__ = ("_dedup_limit", "_dedup_ttl", "_partition_key", "producers", "shards", "uids")

    def __init__(self, dedup_ttl: float, dedup_limit: int, partition_key: Callable[[str], str], shards: int = 1) -> None:
        self._dedup_ttl = dedup_ttl
        self._dedup_limit = dedup_limit
        self._partition_key = partition_key
        self.shards = shards
        self.uids = Dedup(dedup_ttl, dedup_limit)
        self.producers = Producers()

    def draft(self) -> "Registrations":
        """An empty copy with the same limits, for publications that are planned and not registered yet."""
        return Registrations(self._dedup_ttl, self._dedup_limit, self._partition_key, self.shards)

    def shard(self, stream: str) -> int:
        return locate_shard(self._partition_key(stream), self.shards)

    def find(self, publication: Publication, now: float) -> Position | None:
        """The position registered under the same idempotency key; None if there is none."""
        return self.by_sequence(publication) or self.by_uid(publication, now)

    def by_sequence(self, publication: Publication) -> Position | None:
        if not publication.producer:
            return None
        return self.producers.find(publication.producer, self.shard(publication.stream), publication.sequence)

    def by_uid(self, publication: Publication, now: float) -> Position | None:
        return self.uids.find(publication.stream, publication.uid, now) if publication.uid else None

    def remember(self, publication: Publication, registered: Registered, now: float) -> None:
        if not (publication.uid or publication.producer):
            return
        position = Position(registered.epoch, registered.offset)
        if publication.producer:
            self.producers.remember(publication.producer, self.shard(publication.stream), publication.sequence, position)
        if publication.uid:
            self.uids.remember(publication.stream, publication.uid, position, now)

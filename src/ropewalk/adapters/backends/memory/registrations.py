"""Registered idempotency keys: uids for a limited time, producer sequences without limit.

Invariant: a publication is looked up here before it gets a position, and remembered when it has one.
"""

from collections.abc import Callable

from ropewalk.core.dedup import Dedup
from ropewalk.core.producers import Producers
from ropewalk.core.ring import shard_of
from ropewalk.model.messages import Position, Publication, Registered


class Registrations:
    """`shards` is the journal's number of shards: a producer's sequences are complete per shard. `partition_key` tells that of
    a stream."""

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
        return shard_of(self._partition_key(stream), self.shards)

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

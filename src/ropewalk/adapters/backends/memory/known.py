"""What has been registered already: by uid for a time, by producer and sequence for good.

The rule it keeps: a publication is asked for here before it gets a position, and remembered when it has one.
"""

from ropewalk.core.dedup import Dedup
from ropewalk.core.producers import Producers
from ropewalk.core.ring import shard_of
from ropewalk.model.messages import Position, Publication, Registered


class Known:
    """`shards` is the journal's number of them, for it is shard by shard that a producer's record is whole."""

    __slots__ = ("_dedup_limit", "_dedup_ttl", "producers", "shards", "uids")

    def __init__(self, dedup_ttl: float, dedup_limit: int, shards: int = 1) -> None:
        self._dedup_ttl = dedup_ttl
        self._dedup_limit = dedup_limit
        self.shards = shards
        self.uids = Dedup(dedup_ttl, dedup_limit)
        self.producers = Producers()

    def draft(self) -> "Known":
        """An empty one under the same terms, for what is planned and not registered yet."""
        return Known(self._dedup_ttl, self._dedup_limit, self.shards)

    def shard(self, stream: str) -> int:
        return shard_of(stream, self.shards)

    def find(self, publication: Publication, now: float) -> Position | None:
        """The position of the first of this name; None if there was none, or it has no name."""
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

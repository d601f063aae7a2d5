"""What has been registered already: by uid for a time, by producer and sequence for good.

The rule it keeps: a publication is asked for here before it gets a position, and remembered when it has one.
"""

from ropewalk.core.dedup import Dedup
from ropewalk.core.producers import Producers
from ropewalk.core.ring import shard_of
from ropewalk.model.messages import Position, Publication, Registered


class Known:
    """`shards` is the journal's number of them, for it is shard by shard that a producer's record is whole."""

    __slots__ = ("producers", "shards", "uids")

    def __init__(self, dedup_ttl: float, dedup_limit: int) -> None:
        self.shards = 1
        self.uids = Dedup(dedup_ttl, dedup_limit)
        self.producers = Producers()

    def shard(self, stream: str) -> int:
        return shard_of(stream, self.shards)

    def find(self, publication: Publication, now: float) -> Position | None:
        """The position of the first of this name; None if there was none, or it has no name."""
        stream, producer = publication.stream, publication.producer
        if producer:
            first = self.producers.find(producer, self.shard(stream), publication.sequence)
            if first is not None:
                return first
        return self.uids.find(stream, publication.uid, now) if publication.uid else None

    def remember(self, publication: Publication, registered: Registered, now: float) -> None:
        if not (publication.uid or publication.producer):
            return
        position = Position(registered.epoch, registered.offset)
        if publication.producer:
            self.producers.remember(publication.producer, self.shard(publication.stream), publication.sequence, position)
        if publication.uid:
            self.uids.remember(publication.stream, publication.uid, position, now)


def repeated(publication: Publication, first: Position, now: float) -> Registered:
    """A repetition, at the position of the first. It carries its own payload, since the first one's may be gone."""
    return Registered(
        publication.stream,
        publication.payload,
        now,
        first.epoch,
        first.offset,
        publication.exclude_socket,
        publication.broadcast_type,
    )

"""The durable record of what happened, its readers, and the cold history behind the hot one."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from ropewalk.model.history import ColdPiece
from ropewalk.model.journal import Consumer, Marks, Row, ShardSpan


class Journal(Protocol):
    """The durable, append-only record. One writer; rows of one shard keep the order in which they were handed over."""

    @property
    def instant(self) -> bool:
        """True: an acknowledgement does not wait for the journal, so `note` is all that is ever needed."""

    async def write(self, rows: Sequence[Row]) -> None:
        """Returns when the rows are as safe as the durability asked for. Raises `Unavailable`, and then none of them counts."""

    def write_nowait(self, rows: Sequence[Row]) -> None:
        """Record with the next group, without waiting. Bounded: rows that would overflow are counted and logged."""

    def health(self) -> str: ...

    def gauges(self) -> dict[str, float]: ...


class JournalReader(Protocol):
    """The journal as readers see it: by shard and dense position."""

    def spans(self) -> list[ShardSpan]:
        """What can be read, by shard in order and by age within a shard. Ends are of what is written, never of what waits.
        Between two spans of one epoch lies what was lost."""

    def read(self, shard: int, first: int, end: int, max_bytes: int) -> AsyncIterator[bytes]:
        """An Arrow IPC stream that covers [first, end) or as much of its beginning as fits; whole batches, so that it may begin
        earlier and end later: readers cut by the column `position`. Raises BadRequest for what is not there (any more)."""

    def mark_archived(self, positions: dict[int, int]) -> None:
        """Everything below these positions is in the archive, so that its segments may go. The last report of a shard counts,
        lower ones too: an archive may lose rows."""

    def archived_ends(self) -> dict[int, int]:
        """The positions that `archived` was told last, by shard."""


class ConsumerStore(Protocol):
    """The marks of named readers. On return a change is on disk. Changes may raise `Unavailable`, and then nothing happened.
    The caller ensures that marks name shards and positions that the journal has."""

    def consumers(self) -> list[Consumer]:
        """In order of name."""

    async def pin(self, name: str, marks: Marks) -> Consumer:
        """Set the marks, unless they are set: a shard that has a mark keeps it. Raises LimitReached for one name too many."""

    async def move(self, name: str, marks: Marks) -> Consumer:
        """Advance the marks; a mark never goes back. An unknown name is added, which may raise LimitReached."""

    async def remove(self, name: str) -> bool:
        """False for an unknown name."""


class Archive(Protocol):
    """Cold history: what left the hot one, in the archive or still in the journal."""

    async def read(
        self, stream: str, partition_key: str, epoch: str, first: int, last: int, limit: int, since: float = 0.0
    ) -> ColdPiece:
        """Offsets [first, last] of that epoch that are there, registered at or after `since`: in order, each once, at most
        `limit`. Whether they are dense is for the caller to see. Times are kept to the microsecond, and `fields` are those that
        they had. Never on the event loop.

        Raises `Unavailable` where something in the range may be there and cannot be read: an answer with less would tell the
        caller that it does not exist.
        """

    async def stop(self) -> None:
        """Reads under way are answered or raise `Unavailable`, later ones raise it. Again is harmless."""

    def health(self) -> str: ...

    def gauges(self) -> dict[str, float]:
        """For the metrics page, beside those of the backend: archive_reads_waiting, and others that begin with `archive_`."""

"""The journal, its readers, and the archive behind the hot history."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from ropewalk.model.history import ColdPiece, HistoryRange
from ropewalk.model.journal import Consumer, Marks, Row, ShardSpan


class Journal(Protocol):
    """The durable, append-only record. One writer; rows of one shard keep the order of the calls."""

    @property
    def instant(self) -> bool:
        """Publications are acknowledged before they are durable, so `write_nowait` is enough."""

    async def write(self, rows: Sequence[Row]) -> None:
        """Returns when the rows have the configured durability. Raises `Unavailable` if none of them is recorded."""

    def write_nowait(self, rows: Sequence[Row]) -> None:
        """Record with the next group. The queue is bounded: on overflow rows are dropped, counted and logged."""

    def health(self) -> str: ...

    def gauges(self) -> dict[str, float]: ...


class JournalReader(Protocol):
    """The journal as readers see it: by shard and dense position."""

    def spans(self) -> list[ShardSpan]:
        """The readable positions, by shard, in order, and by age within a shard. They end at the last written row. Positions
        between two spans of one epoch were lost."""

    def read(self, shard: int, first: int, end: int, max_bytes: int) -> AsyncIterator[bytes]:
        """An Arrow IPC stream of [first, end), or of the part from `first` that fits into `max_bytes`. Batches are complete, so
        it may begin earlier and end later: readers filter by the column `position`. Raises BadRequest for positions that are
        not (or no longer) in the journal."""

    def mark_archived(self, positions: dict[int, int]) -> None:
        """Rows below these positions, by shard, are in the archive, so their segments may be deleted. The last report of a
        shard counts, even if it is lower: an archive may lose rows."""

    def archived_ends(self) -> dict[int, int]:
        """The positions of the last `mark_archived`, by shard."""


class ConsumerStore(Protocol):
    """The marks of named readers. Changes are on disk when a call returns, or raise `Unavailable` without effect. The caller
    checks that the marks name shards and positions of the journal."""

    def consumers(self) -> list[Consumer]:
        """In order of name."""

    async def pin(self, name: str, marks: Marks) -> Consumer:
        """Set the marks of shards that have none yet. Raises LimitReached if there are too many names."""

    async def move(self, name: str, marks: Marks) -> Consumer:
        """Advance the marks; they never go back. An unknown name is added, which may raise LimitReached."""

    async def remove(self, name: str) -> bool:
        """False for an unknown name."""


class Archive(Protocol):
    """Cold history: messages that left the hot history, in the archive or still in the journal."""

    async def read(self, partition_key: str, wanted: HistoryRange) -> ColdPiece:
        """Returns the archived messages of a range in order, each once. The caller checks whether they are dense. Times have
        microseconds, and `fields` are as registered. Never blocks the event loop.

        Raises `Unavailable` if part of the range may exist and cannot be read: a shorter answer would mean that the rest does
        not exist.
        """

    async def stop(self) -> None:
        """Active reads return or raise `Unavailable`, later ones raise it. May be repeated."""

    def health(self) -> str: ...

    def gauges(self) -> dict[str, float]:
        """For the metrics page, in addition to the backend's: archive_reads_waiting, and others with the prefix `archive_`."""

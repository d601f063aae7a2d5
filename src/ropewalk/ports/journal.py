"""The journal, its readers, the archive behind the hot history, and transactions: publishing many rows as one, staged until the
commit."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

from ropewalk.model.history import ColdPiece, HistoryRange
from ropewalk.model.journal import Consumer, Marks, Row, ShardSpan
from ropewalk.model.messages import Publication
from ropewalk.model.transactions import AppRecord, Committed, Decision, Produced, Staged, StagedPiece


class Staging(Protocol):
    """Durable state of transactions, by application. All calls may raise `Unavailable`.

    Several pieces may be put concurrently; decisions and ends of one application are sequential.
    """

    async def load(self) -> list[AppRecord]:
        """Returns the complete state. Called once, before all other calls."""

    async def put(self, app: str, batch: int, piece: StagedPiece, data: bytes) -> None:
        """Store a piece completely or not at all. It need not survive a power failure yet."""

    async def discard(self, app: str, batch: int, pieces: Sequence[StagedPiece]) -> None: ...

    async def discard_batch(self, app: str, batch: int) -> None: ...

    async def decide(self, app: str, last: int | None, decision: Decision) -> list[StagedPiece]:
        """On return the pieces and then the decision are on disk. If pieces are damaged or missing, it returns them and decides
        nothing."""

    async def read(self, app: str, batch: int, piece: StagedPiece) -> bytes:
        """A decided piece, exactly as it was put."""

    async def finish(self, app: str, batch: int) -> None:
        """On return the batch is recorded on disk as the application's last, and everything up to it is removed."""


class Rows(Protocol):
    """The rows of a decoded body."""

    def __len__(self) -> int: ...

    def publications(self, start: int, count: int) -> list[Publication]:
        """Raises MalformedPublication with the index of the row."""


RowReader = Callable[[bytes], Rows]
"""Decodes a body; raises MalformedPublication. It may be slow, so it is called in a thread."""


class Transactor(Protocol):
    """Accepts transactions and numbered rows from endpoints. All calls may raise `Unavailable` and may be retried."""

    async def stage(self, app: str, batch: int, key: tuple[int, int, int], body: bytes) -> Staged:
        """Keep a body for (part, attempt, seq). Raises MalformedPublication, LimitReached, or Conflict out of turn."""

    async def commit(self, app: str, batch: int, winners: Mapping[int, int], counts: Mapping[int, int]) -> Committed:
        """Publish the pieces of the winning attempts (part → attempt), once. `counts`: the number of pieces of some parts.
        Raises Conflict if nothing was published."""

    async def last_batch(self, app: str) -> int | None:
        """The last finished batch."""

    async def produce(self, producer: str, first: int, body: bytes) -> Produced:
        """Publish rows with the sequences `first`, `first` + 1 …, skipping known ones."""

    async def publish(self, body: bytes) -> Produced:
        """Publish rows with their own keys. Rows with a known uid in their stream are skipped, and rows whose producer has
        reached their sequence already."""


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

"""Transactions: publishing many rows as one, and staging them until the commit."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

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

"""Rows that are published as one, and what is kept of them until then."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ropewalk.model.messages import Publication
from ropewalk.model.transactions import AppRecord, Committed, Decision, Produced, Staged, StagedPiece


class Staging(Protocol):
    """Keeps what transactions need over a crash, by application. Everything may raise `Unavailable`.

    Several pieces may be put at once; decisions and ends of one application come one after another.
    """

    async def load(self) -> list[AppRecord]:
        """Everything that is kept. Called once, before all else."""

    async def put(self, app: str, batch: int, piece: StagedPiece, data: bytes) -> None:
        """Keep a piece, whole or not at all. It need not outlive a power failure yet."""

    async def discard(self, app: str, batch: int, pieces: Sequence[StagedPiece]) -> None: ...

    async def discard_batch(self, app: str, batch: int) -> None: ...

    async def decide(self, app: str, last: int | None, decision: Decision) -> list[StagedPiece]:
        """On return the pieces and then the decision are on disk, unless it names pieces that are not as they were put:
        then nothing is decided."""

    async def read(self, app: str, batch: int, piece: StagedPiece) -> bytes:
        """A decided piece, exactly as it was put."""

    async def finish(self, app: str, batch: int) -> None:
        """On return it is on disk that the batch is the application's last, and what was kept up to it is removed."""


class Rows(Protocol):
    """The rows of a body that was read."""

    def __len__(self) -> int: ...

    def publications(self, start: int, count: int) -> list[Publication]:
        """Raises MalformedPublication with the index of the row."""


RowReader = Callable[[bytes], Rows]
"""A body to its rows; raises MalformedPublication. Called in a thread, for it may take its time."""


class Transactor(Protocol):
    """Where endpoints bring transactions and numbered rows. Everything may raise `Unavailable`; the same call again is safe."""

    async def stage(self, app: str, batch: int, key: tuple[int, int, int], body: bytes) -> Staged:
        """Keep a body for (part, attempt, seq). Raises MalformedPublication, LimitReached, or Conflict out of turn."""

    async def commit(self, app: str, batch: int, winners: Mapping[int, int], counts: Mapping[int, int]) -> Committed:
        """Publish the pieces of the winning attempts (part → attempt), once. `counts`: how many pieces some parts have.
        Raises Conflict, and then nothing was published."""

    async def last_batch(self, app: str) -> int | None:
        """The last finished batch."""

    async def produce(self, producer: str, first: int, body: bytes) -> Produced:
        """Publish rows with the sequences `first`, `first` + 1 …; those that are known already are skipped."""

    async def publish(self, body: bytes) -> Produced:
        """Publish rows as they come. Those with a uid that is known in their stream, and those with a producer whose sequence
        has come that far, are skipped."""

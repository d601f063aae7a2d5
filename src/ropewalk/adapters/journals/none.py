"""The journal that is switched off: nothing is written, nothing waits, and there is nothing to read."""

from collections.abc import AsyncIterator, Sequence

from ropewalk.model.errors import BadRequest
from ropewalk.model.journal import Consumer, Marks, Recovered, Row, ShardSpan


class NoJournal:
    """Implements `ports.Journal`, `ports.JournalReader` and `ports.ConsumerStore`."""

    instant = True

    def open(self, horizon: float) -> Recovered:
        return Recovered()

    async def start(self) -> None:
        """There is nothing to start."""

    async def stop(self) -> None:
        """There is nothing to end."""

    async def sweep(self) -> None:
        """There is nothing to let go."""

    async def write(self, rows: Sequence[Row]) -> None:
        """Kept nowhere, as asked."""

    def write_nowait(self, rows: Sequence[Row]) -> None:
        """Kept nowhere, as asked."""

    def health(self) -> str:
        return ""

    def gauges(self) -> dict[str, float]:
        return {}

    def spans(self) -> list[ShardSpan]:
        return []

    def read(self, shard: int, first: int, end: int, max_bytes: int) -> AsyncIterator[bytes]:
        raise BadRequest("this server keeps no journal")

    def mark_archived(self, positions: dict[int, int]) -> None:
        """There is nothing that an archive would let go."""

    def archived_ends(self) -> dict[int, int]:
        return {}

    def consumers(self) -> list[Consumer]:
        return []

    async def pin(self, name: str, marks: Marks) -> Consumer:
        raise BadRequest("this server keeps no journal")

    async def move(self, name: str, marks: Marks) -> Consumer:
        raise BadRequest("this server keeps no journal")

    async def remove(self, name: str) -> bool:
        return False

"""The disabled journal: writes are discarded, and reads are refused."""

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
        """There is nothing to remove."""

    async def write(self, rows: Sequence[Row]) -> None:
        """Discards the rows."""

    def write_nowait(self, rows: Sequence[Row]) -> None:
        """Discards the rows."""

    def health(self) -> str:
        return ""

    def gauges(self) -> dict[str, float]:
        return {}

    def spans(self) -> list[ShardSpan]:
        return []

    def read(self, shard: int, first: int, end: int, max_bytes: int) -> AsyncIterator[bytes]:
        raise BadRequest("this server keeps no journal")

    def mark_archived(self, positions: dict[int, int]) -> None:
        """No rows depend on the archive."""

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

"""A journal in memory, which writes when the test says so."""

import asyncio
from collections.abc import Sequence

from ropewalk.model.errors import Unavailable
from ropewalk.model.journal import Recovered, Row
from tests.waiting import settle


class FakeJournal:
    """Implements `ports.Journal`. With `hold` every write waits for `release` or `refuse`."""

    def __init__(self, instant: bool = False, hold: bool = False) -> None:
        self.instant = instant
        self.rows: list[Row] = []
        self.groups: list[list[Row]] = []
        self._hold = hold
        self._writing: asyncio.Future[None] | None = None

    async def write(self, rows: Sequence[Row]) -> None:
        self.groups.append(list(rows))
        if self._hold:
            self._writing = asyncio.get_running_loop().create_future()
            await self._writing
        self.rows += rows

    def write_nowait(self, rows: Sequence[Row]) -> None:
        self.rows += rows

    async def release(self) -> None:
        """Completes the current write."""
        (await self._in_hand()).set_result(None)
        await settle()

    async def refuse(self) -> None:
        (await self._in_hand()).set_exception(Unavailable("out of ink"))
        await settle()

    async def _in_hand(self) -> asyncio.Future[None]:
        await settle()
        assert self._writing is not None
        writing, self._writing = self._writing, None
        return writing

    def health(self) -> str:
        return ""

    def gauges(self) -> dict[str, float]:
        return {}

    def recovered(self) -> Recovered:
        """As after a kill at this moment."""
        return Recovered(rows=self.rows, newest=max((row.timestamp for row in self.rows), default=0.0))

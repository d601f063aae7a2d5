"""Readers of messages outside the hot history, while all else runs: REST pages, cable clients, and the reader of Spark tasks.

The rule they check: offsets are consecutive, and every gap is reported. Their messages are kept and compared at the end.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp

from ropewalk.client import CableError, Gap, Message, connect
from ropewalk.model.errors import Unavailable
from ropewalk.model.messages import Position
from ropewalk.pipeline.journal_client import JournalClient
from ropewalk.pipeline.offsets import PositionRange
from ropewalk.pipeline.options import SourceOptions, source_options
from ropewalk.pipeline.rows import DataLoss, RangeReader
from tests.spark.chaos.traffic import QUICK, Traffic

PAGE = 200
RANGE = 1_000
TIMEOUT = 120.0
PAUSE = 1.0
COMPLETE, GAP, CUT = "complete", "with a reported gap", "interrupted by a kill of the server"
KINDS = ("REST", "cable", "Spark task")


class Interrupted(Exception):
    """The server was killed during a response, so the response proves nothing."""


class ColdReaders:
    """One of each kind, each reading one range after another. `ends`: how their reads ended, by kind and ending."""

    def __init__(self, url: str, archive: Path, traffic: Traffic, chance: random.Random) -> None:
        self.ends: Counter[tuple[str, str]] = Counter()
        self.seen: dict[tuple[str, str, int], Any] = {}
        self._url = url
        self._traffic = traffic
        self._chance = chance
        self._options = source_options(
            {"url": url, "columns": "journal", "archive": str(archive), "fetchOffset.numRetries": "0"}, streaming=False
        )

    def done(self) -> dict[str, int]:
        """How many reads were answered, by kind."""
        return {kind: self.ends[kind, COMPLETE] + self.ends[kind, GAP] for kind in KINDS}

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for kind, read in zip(KINDS, (self._some_pages, self._some_of_a_subscription, self._some_of_a_shard), strict=True):
                group.create_task(self._again_and_again(kind, read))

    async def read_everything(self) -> int:
        """Every stream from its beginning in both ways, without a gap; returns how many messages that were."""
        before = len(self._traffic.published)
        for name, newest in self._traffic.newest.items():
            beginning = Position(newest.epoch, 0)
            assert await self._pages(name, beginning, newest.offset, newest.offset) == COMPLETE
            assert await self._subscription(name, beginning, newest.offset) == COMPLETE
        assert self.seen == self._traffic.published
        return before

    async def _again_and_again(self, kind: str, read: Callable[[], Awaitable[str]]) -> None:
        while True:
            if self._traffic.newest:
                try:
                    async with asyncio.timeout(TIMEOUT):
                        ended = await read()
                except Interrupted:
                    ended = CUT
                self.ends[kind, ended] += 1
            await asyncio.sleep(self._chance.random() * PAUSE)

    # --- readers -------------------------------------------------------------------------------------------------

    async def _some_pages(self) -> str:
        name, start, newest = self._choice()
        return await self._pages(name, start, newest, RANGE)

    async def _some_of_a_subscription(self) -> str:
        name, start, newest = self._choice()
        return await self._subscription(name, Position(start.epoch, max(start.offset, newest - RANGE)), newest)

    def _choice(self) -> tuple[str, Position, int]:
        """A stream, where to begin, and how far it is known to go. Half of them go over what was archived last."""
        name, newest = self._chance.choice(sorted(self._traffic.newest.items()))
        reach = min(newest.offset, RANGE if self._chance.random() < 0.5 else newest.offset)
        return name, Position(newest.epoch, newest.offset - self._chance.randint(1, reach)), newest.offset

    async def _pages(self, name: str, start: Position, newest: int, most: int) -> str:
        ended, after = COMPLETE, start.offset
        async with aiohttp.ClientSession(self._url) as http:
            while after < min(newest, start.offset + most):
                page = await self._page(http, name, after)
                assert page["epoch"] == start.epoch, page
                if page["oldest"] > after + 1:
                    ended, after = GAP, page["oldest"] - 1
                for message in page["messages"]:
                    after += 1
                    self._saw(name, start.epoch, message["offset"], message["message"], after)
                assert page["next"] is not None or after >= newest, f"{name} ends at {after}, and {newest} was published"
        return ended

    async def _page(self, http: aiohttp.ClientSession, name: str, after: int) -> dict[str, Any]:
        query = {"after": str(after), "limit": str(PAGE)}
        try:
            async with http.get(f"/api/streams/{name}/history", params=query) as answer:
                page: dict[str, Any] = await answer.json()
                if answer.status == 503:
                    raise Interrupted
                assert answer.status == 200, page
                return page
        except aiohttp.ClientError as error:
            raise Interrupted from error

    async def _subscription(self, name: str, start: Position, newest: int) -> str:
        ended, reached = COMPLETE, start.offset
        try:
            async with connect(self._url, backoff=QUICK) as client:
                async for event in await client.subscribe(name, position=start):
                    if isinstance(event, Gap):
                        assert event.epoch == start.epoch, event
                        assert event.resumes_at is not None, event
                        ended, reached = GAP, event.resumes_at - 1
                    elif isinstance(event, Message):
                        reached += 1
                        self._saw(name, event.epoch, event.offset, event.data, reached)
                    if reached >= newest:
                        break
        except CableError as error:
            raise Interrupted from error
        return ended

    async def _some_of_a_shard(self) -> str:
        try:
            return await asyncio.to_thread(self._shard)
        except Unavailable as error:
            raise Interrupted from error

    def _shard(self) -> str:
        """A range over the place where the journal begins, or any other."""
        span = self._chance.choice([span for spans in JournalClient(self._options.address).spans().values() for span in spans])
        seam = span.first - self._chance.randrange(RANGE)
        first = max(0, seam if self._chance.random() < 0.5 else self._chance.randrange(max(1, span.end)))
        positions = PositionRange(span.shard, span.epoch, first, min(span.end, first + RANGE))
        try:
            rows = list(_rows(self._options, positions))
        except DataLoss:
            return GAP
        assert [row["position"] for row in rows] == list(range(positions.first, positions.end))
        for row in rows:
            if row["event"] == "publish":
                self._saw(row["stream"], row["epoch"], row["offset"], json.loads(row["value"]), row["offset"])
        return COMPLETE

    def _saw(self, stream: str, epoch: str, offset: int, value: Any, expected: int) -> None:
        assert offset == expected, f"{stream} has offset {offset} instead of {expected}, without a reported gap"
        assert self.seen.setdefault((stream, epoch, offset), value) == value, f"{stream} has two messages {offset}"


def _rows(options: SourceOptions, positions: PositionRange) -> Iterator[dict[str, Any]]:
    for batch in RangeReader(options, positions).batches():
        yield from batch.to_pylist()

"""Streams in memory, for readers and publishers: the stream table and one of the ways to commit to it."""

from ropewalk.adapters.backends.memory.commits import Commit
from ropewalk.adapters.backends.memory.stream_table import StreamTable
from ropewalk.core.history import BEFORE_ALL
from ropewalk.model.history import Gap, GapReason, HistoryPage, Replay, StreamSummary
from ropewalk.model.messages import Position
from ropewalk.ports import Clock


class MemoryStreams:
    """Implements `ports.StreamStore`. Readers never suspend, and see what is committed only."""

    def __init__(self, table: StreamTable, commit: Commit, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self.append = commit.append  # itself, not a method around it: that would be a tenth of what a single append costs

    async def replay(self, stream: str, position: Position) -> Replay | Gap:
        log = self._table.logs.get(stream)
        if log is not None:
            return log.after(position, self._clock())
        if position.offset == 0:
            return Replay(stream, "", 0)
        return Gap(stream, GapReason.EPOCH_CHANGED, "", 1, 0)

    async def since(self, stream: str, timestamp: float) -> Replay | Gap:
        log = self._table.logs.get(stream)
        return Replay(stream, "", 0) if log is None else log.since(timestamp, self._clock())

    async def tip(self, stream: str) -> Position:
        log = self._table.logs.get(stream)
        return BEFORE_ALL if log is None else Position(log.epoch, log.tip)

    async def partition_key(self, stream: str) -> str:
        return self._table.partition_key(stream)

    async def summaries(self, after: str, limit: int) -> list[StreamSummary]:
        now = self._clock()
        return [self._table.logs[name].summary(now) for name in self._table.names.after(after, limit)]

    async def page(self, stream: str, after: int, limit: int) -> HistoryPage | None:
        log = self._table.logs.get(stream)
        return None if log is None else log.page(after, limit, self._clock())

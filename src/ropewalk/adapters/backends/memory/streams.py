"""Streams in memory: the logs of all streams of this process by name, when each is due for trimming, and the store over them.

Invariant: a stream is forgotten only together with its epoch, so no position ever means two messages.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

from ropewalk.core.expiry import Expiry
from ropewalk.core.history import BEFORE_ALL, HistoryTotals, StreamLog
from ropewalk.core.names import OrderedNames
from ropewalk.core.rules import Rulebook
from ropewalk.model.history import Gap, GapReason, HistoryPage, Replay, StreamSummary
from ropewalk.model.journal import StreamTip
from ropewalk.model.limits import StoreLimits
from ropewalk.model.messages import Position, Publication, Receipt, Registered
from ropewalk.model.shards import StreamContent
from ropewalk.ports import Clock

SWEPT_AT_ONCE = 250
"""Streams that a sweep may look at in one turn of the event loop: some milliseconds of work, with the history of each."""


class Commit(Protocol):
    @property
    def instant(self) -> bool:
        """`append` never suspends."""

    async def append(self, publications: Sequence[Publication]) -> list[Receipt]: ...
    async def settle(self) -> None:
        """Returns when nothing is under way."""


class StreamTable:
    """The streams by name. One that is idle for longer than `StoreLimits.idle_ttl` is forgotten: its next publication begins a
    new epoch, and clients with old positions get a gap."""

    def __init__(self, rulebook: Rulebook, limits: StoreLimits, new_epoch: Callable[[], str]) -> None:
        self._rulebook = rulebook
        self._limits = limits
        self._new_epoch = new_epoch
        self._deadlines = Expiry()
        self.logs: dict[str, StreamLog] = {}
        self.names = OrderedNames()
        self.kept = HistoryTotals()
        self._outdated: list[str] = []  # streams to which new rules are not applied yet
        self.since = 0.0  # when the server started: time before it does not count as idle

    def append(self, publication: Publication, now: float) -> Registered:
        """Give it the next position, and keep it there."""
        log = self.logs.get(publication.stream)
        if log is None:
            log = self._open(publication.stream, self._new_epoch())
            self.assign(publication.stream, publication.partition_key)
        registered = log.append(publication, now)
        if len(log) <= 1:  # nothing was kept before: its next deadline may be nearer now
            self._schedule(log)
        return registered

    def partition_key(self, stream: str) -> str:
        log = self.logs.get(stream)
        return stream if log is None else log.partition_key or stream

    def assign(self, stream: str, partition_key: str) -> None:
        """For a new stream or one that was deleted; "" and the stream's name mean the default."""
        if partition_key and partition_key != stream:
            self.logs[stream].partition_key = partition_key

    def reach(self, stream: str) -> tuple[str, int, float]:
        """How far the stream has come, or where it would begin: its epoch, its tip and the time of that."""
        log = self.logs.get(stream)
        return (self._new_epoch(), 0, 0.0) if log is None else (log.epoch, log.tip, log.newest)

    def place(self, registered: Registered) -> None:
        """Keep planned messages. A stream that was deleted since then is restored, because its epoch is already in use."""
        log = self.logs.get(registered.stream)
        if log is None or log.epoch != registered.epoch:
            log = self._reopen(registered.stream, registered.epoch)
        log.insert(registered)
        if len(log) <= 1:
            self._schedule(log)

    def overtaken(self, stream: str, partition_key: str, timestamp: float) -> bool:
        """Whether a recovered message belongs to an older epoch in another shard: a deleted stream may have restarted with
        another partition key, and shards are read one after another."""
        log = self.logs.get(stream)
        return log is not None and self.partition_key(stream) != (partition_key or stream) and log.newest > timestamp

    def read_back(self, tip: StreamTip) -> None:
        """A stream that had come this far before a restart."""
        if self.overtaken(tip.stream, tip.partition_key, tip.timestamp):
            return
        log = self.logs.get(tip.stream)
        if log is None or log.epoch != tip.epoch:
            log = self._reopen(tip.stream, tip.epoch)
        self.assign(tip.stream, tip.partition_key)
        if tip.tip > log.tip:
            log.advance_tip(tip.tip, tip.timestamp)
        self._schedule(log)

    def take_out(self, stream: str) -> StreamContent:
        """It goes on in another store, in its epoch."""
        log = self.logs[stream]
        content = log.content()
        log.trim(inf)  # so that the totals are right
        self._deadlines.discard(stream)
        self._forget(log)
        return content

    def put_in(self, content: StreamContent) -> None:
        log = self._reopen(content.stream, content.epoch)
        self.assign(content.stream, content.partition_key)
        log.restore(content, self._rulebook.of(content.stream))
        self._schedule(log)

    def reload_rules(self) -> None:
        """The rulebook has changed. The next sweep applies it to the streams, in slices."""
        self._outdated = list(self.logs)

    def _apply_rules(self, now: float) -> None:
        told = self._outdated[-SWEPT_AT_ONCE:]
        del self._outdated[-SWEPT_AT_ONCE:]
        for stream in told:
            if (log := self.logs.get(stream)) is not None:
                log.apply_rules(self._rulebook.of(stream))
                log.trim(now)
                self._schedule(log)

    def sweep(self, now: float) -> bool:
        """Process a slice of the due entries. Returns whether there are more."""
        if self._outdated:
            self._apply_rules(now)
        for stream in self._deadlines.due(now, SWEPT_AT_ONCE):
            log = self.logs[stream]
            log.trim(now)
            if self._forget_at(log) <= now:
                self._forget(log)
            else:
                self._schedule(log)
        return bool(self._outdated) or self._deadlines.is_due(now)

    def _open(self, stream: str, epoch: str) -> StreamLog:
        log = self.logs[stream] = StreamLog(stream, epoch, self._rulebook.of(stream), self.kept)
        self.names.add(stream)
        return log

    def _reopen(self, stream: str, epoch: str) -> StreamLog:
        log = self.logs.get(stream)
        if log is not None:
            log.trim(inf)
            self._forget(log)
        return self._open(stream, epoch)

    def _schedule(self, log: StreamLog) -> None:
        trim_at = log.trim_at
        self._deadlines.set(log.stream, self._forget_at(log) if trim_at is None else trim_at)

    def _forget_at(self, log: StreamLog) -> float:
        history_ttl = self._rulebook.of(log.stream).history_ttl
        return max(log.newest, self.since) + self._limits.idle_ttl(history_ttl)

    def _forget(self, log: StreamLog) -> None:
        self.names.remove(log.stream)
        del self.logs[log.stream]


class MemoryStreams:
    """Implements `ports.StreamStore`. Reads never suspend, and return committed messages only."""

    resolves_unanswered = True  # there is nothing to resolve
    confirms_transient = False

    def __init__(self, table: StreamTable, commit: Commit, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self.instant = commit.instant
        self.append = commit.append  # itself, not a method around it: that would be a tenth of what a single append costs

    async def replay(self, stream: str, position: Position) -> Replay | Gap:
        log = self._table.logs.get(stream)
        if log is not None:
            return log.after(position, self._clock())
        if position == BEFORE_ALL:
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

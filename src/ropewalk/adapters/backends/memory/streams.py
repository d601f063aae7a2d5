"""Streams in memory: positions, hot history and idempotency keys.

The rule it keeps: a stream is forgotten only together with its epoch, so no position ever means two messages.
"""

from collections.abc import Callable, Sequence

from ropewalk.core.dedup import Dedup
from ropewalk.core.expiry import Expiry
from ropewalk.core.history import BEFORE_ALL, Kept, StreamLog
from ropewalk.core.names import OrderedNames
from ropewalk.core.rules import Rulebook
from ropewalk.model.history import Gap, GapReason, HistoryPage, Replay, StreamSummary
from ropewalk.model.messages import Position, Publication, Registered
from ropewalk.ports import Appended, Clock, OnRegistered, ignore

SWEPT_AT_ONCE = 2000
"""Streams (and as many idempotency keys) that one sweep may look at: some milliseconds of work."""

LEAST_MEMORY = 30.0
"""Seconds for which a stream counts as kept at the least, so that one without history outlives its clients' reconnects too."""


class MemoryStreams:
    """Fills `ports.StreamStore`.

    A stream is forgotten when nobody published to it for `idle_factor` times the longest of: its history TTL, the TTL of
    idempotency keys, 30 seconds. Its next publication begins a new epoch, and clients with old positions are told so.
    """

    def __init__(
        self,
        rulebook: Rulebook,
        clock: Clock,
        new_epoch: Callable[[], str],
        dedup: Dedup,
        idle_factor: float,
        dedup_ttl: float,
    ) -> None:
        self._rulebook = rulebook
        self._clock = clock
        self._new_epoch = new_epoch
        self._dedup = dedup
        self._idle_factor = max(1.0, idle_factor)  # a stream outlives its own history
        self._least_memory = max(dedup_ttl, LEAST_MEMORY)
        self._logs: dict[str, StreamLog] = {}
        self._names = OrderedNames()
        self._deadlines = Expiry()
        self.kept = Kept()

    def __len__(self) -> int:
        return len(self._logs)

    async def append(self, publications: Sequence[Publication], registered: OnRegistered = ignore) -> Appended:
        now = self._clock()
        appended = [self._register(publication, now) for publication in publications]
        registered(appended)
        return appended

    async def replay(self, stream: str, position: Position) -> Replay | Gap:
        log = self._logs.get(stream)
        if log is not None:
            return log.after(position, self._clock())
        if position.offset == 0:
            return Replay(stream, "", 0)
        return Gap(stream, GapReason.EPOCH_CHANGED, "", 1, 0)

    async def since(self, stream: str, timestamp: float) -> Replay:
        log = self._logs.get(stream)
        return Replay(stream, "", 0) if log is None else log.since(timestamp, self._clock())

    async def tip(self, stream: str) -> Position:
        log = self._logs.get(stream)
        return BEFORE_ALL if log is None else Position(log.epoch, log.tip)

    async def summaries(self, after: str, limit: int) -> list[StreamSummary]:
        now = self._clock()
        return [self._logs[name].summary(now) for name in self._names.after(after, limit)]

    async def page(self, stream: str, after: int, limit: int) -> HistoryPage | None:
        log = self._logs.get(stream)
        return None if log is None else log.page(after, limit, self._clock())

    def sweep(self) -> None:
        now = self._clock()
        for stream in self._deadlines.due(now, SWEPT_AT_ONCE):
            log = self._logs[stream]
            log.trim(now)
            if self._forget_at(log) <= now:
                self._forget(log)
            else:
                self._schedule(log)
        self._dedup.expire(now, SWEPT_AT_ONCE)

    def _register(self, publication: Publication, now: float) -> tuple[Registered, bool]:
        if publication.uid:
            return self._register_once(publication, now)
        return self._append(publication, now), True

    def _register_once(self, publication: Publication, now: float) -> tuple[Registered, bool]:
        first = self._dedup.find(publication.stream, publication.uid, now)
        if first is not None:
            return _repeated(publication, first, now), False
        registered = self._append(publication, now)
        position = Position(registered.epoch, registered.offset)
        self._dedup.remember(publication.stream, publication.uid, position, now)
        return registered, True

    def _append(self, publication: Publication, now: float) -> Registered:
        log = self._logs.get(publication.stream)
        if log is None:
            log = self._open(publication.stream)
        registered = log.append(publication, now)
        if len(log) <= 1:  # nothing was kept before: its next deadline may be nearer now
            self._schedule(log)
        return registered

    def _open(self, stream: str) -> StreamLog:
        log = self._logs[stream] = StreamLog(stream, self._new_epoch(), self._rulebook.of(stream), self.kept)
        self._names.add(stream)
        return log

    def _schedule(self, log: StreamLog) -> None:
        trim_at = log.trim_at
        self._deadlines.set(log.stream, self._forget_at(log) if trim_at is None else trim_at)

    def _forget_at(self, log: StreamLog) -> float:
        history_ttl = self._rulebook.of(log.stream).history_ttl
        return log.newest + self._idle_factor * max(history_ttl, self._least_memory)

    def _forget(self, log: StreamLog) -> None:
        self._names.remove(log.stream)
        del self._logs[log.stream]


def _repeated(publication: Publication, first: Position, now: float) -> Registered:
    """A retry, at the position of the first. It carries its own payload, since the first one's may be gone."""
    return Registered(
        publication.stream,
        publication.payload,
        now,
        first.epoch,
        first.offset,
        publication.exclude_socket,
        publication.broadcast_type,
    )

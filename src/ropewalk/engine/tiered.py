"""Tiered history: what left the hot history comes from the archive, joined exactly to what is hot.

The rule it keeps: an answer is dense or says where it is not. The hot part is taken first and the cold one fitted below it:
what is published while the archive is read is live, and nobody has to chase it.
"""

import logging
from collections.abc import Sequence
from itertools import count, takewhile

from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import Unavailable
from ropewalk.model.history import ColdPiece, Gap, GapReason, HistoryPage, Replay, StreamSummary
from ropewalk.model.messages import Position, Publication, Registered
from ropewalk.ports import Appended, Archive, Backend, Clock, OnRegistered, PresenceStore, SessionStore, StreamStore, ignore

logger = logging.getLogger("ropewalk.archive")


class TieredStreams:
    """Fills `ports.StreamStore` over a hot one. `limit`: cold messages in one answer; whoever wants more asks again."""

    def __init__(self, hot: StreamStore, archive: Archive, rules: Rulebook, clock: Clock, limit: int) -> None:
        self._hot = hot
        self._archive = archive
        self._rules = rules
        self._clock = clock
        self._limit = limit

    async def append(self, publications: Sequence[Publication], registered: OnRegistered = ignore) -> Appended:
        return await self._hot.append(publications, registered)

    async def tip(self, stream: str) -> Position:
        return await self._hot.tip(stream)

    async def summaries(self, after: str, limit: int) -> list[StreamSummary]:
        return await self._hot.summaries(after, limit)

    async def replay(self, stream: str, position: Position) -> Replay | Gap:
        gap = await self._hot.replay(stream, position)
        if isinstance(gap, Replay) or gap.reason is not GapReason.TRIMMED:
            return gap
        hot = await self._hot.replay(stream, Position(gap.epoch, gap.oldest - 1))
        if isinstance(hot, Gap):
            return hot  # it moved on between the two, which a store that does not suspend cannot
        cold = await self._read(stream, gap.epoch, position.offset + 1, gap.oldest - 1, self._limit)
        return _joined(cold, position.offset + 1, gap.oldest, hot)

    async def since(self, stream: str, timestamp: float) -> Replay | Gap:
        hot = await self._hot.since(stream, timestamp)
        kept = await self._hot.page(stream, 0, 1)
        if kept is None or isinstance(hot, Gap) or not self._may_be_colder(kept, timestamp):
            return hot
        cold = await self._read(stream, kept.epoch, 1, kept.oldest - 1, self._limit, timestamp)
        if not cold.messages:
            return hot
        return _joined(cold, cold.messages[0].offset, kept.oldest, hot)

    async def page(self, stream: str, after: int, limit: int) -> HistoryPage | None:
        hot = await self._hot.page(stream, after, limit)
        if hot is None or after + 1 >= hot.oldest:
            return hot
        cold = await self._read(stream, hot.epoch, after + 1, hot.oldest - 1, min(limit, self._limit))
        messages = _up_to_hole((cold.messages if cold.more else cold.messages + hot.messages)[:limit])
        begin = messages[0].offset if messages else hot.oldest
        oldest = begin if after == 0 or begin > after + 1 else await self._oldest(stream, hot)
        more = bool(messages) and messages[-1].offset < hot.tip
        return HistoryPage(stream, hot.epoch, hot.tip, oldest, messages, messages[-1].offset if more else None)

    async def _oldest(self, stream: str, hot: HistoryPage) -> int:
        first = await self._read(stream, hot.epoch, 1, hot.oldest - 1, 1)
        return first.messages[0].offset if first.messages else hot.oldest

    def _may_be_colder(self, kept: HistoryPage, timestamp: float) -> bool:
        """Whether something from `timestamp` on may have left the hot history: by number, or because it was too old for it."""
        if kept.oldest == 1 or (kept.messages and kept.messages[0].timestamp < timestamp):
            return False
        rules = self._rules.of(kept.stream)
        full = kept.tip + 1 - kept.oldest >= rules.history_limit
        return full or timestamp < self._clock() - rules.history_ttl

    async def _read(self, stream: str, epoch: str, first: int, last: int, limit: int, since: float = 0.0) -> ColdPiece:
        """An archive that cannot answer is one that has nothing: the gap is said, and can be asked for again."""
        try:
            return await self._archive.read(stream, epoch, first, last, limit, since)
        except Unavailable as error:
            logger.warning("cold history is not available", extra={"stream": stream, "reason": str(error)})
            return ColdPiece()


def _joined(cold: ColdPiece, first: int, oldest: int, hot: Replay) -> Replay | Gap:
    """Cold messages from `first` on, then hot ones from `oldest` on, if there is no hole before, between or after them."""
    run = _dense(cold.messages, first)
    reached = first + len(run)
    if len(run) < len(cold.messages):
        return Gap(hot.stream, GapReason.TRIMMED, hot.epoch, cold.messages[len(run)].offset, hot.tip, run)
    if cold.more:
        return Gap(hot.stream, GapReason.PARTIAL, hot.epoch, reached, hot.tip, run)
    if reached < oldest:
        return Gap(hot.stream, GapReason.TRIMMED, hot.epoch, oldest, hot.tip, run)
    return Replay(hot.stream, hot.epoch, hot.tip, run + hot.messages)


def _dense(messages: Sequence[Registered], first: int) -> tuple[Registered, ...]:
    pairs = takewhile(lambda pair: pair[0].offset == pair[1], zip(messages, count(first), strict=False))
    return tuple(message for message, _ in pairs)


def _up_to_hole(messages: Sequence[Registered]) -> tuple[Registered, ...]:
    """A page ends where an offset is missing. The next one begins behind the hole, and its `oldest` says so."""
    dense = takewhile(lambda pair: pair[0].offset == messages[0].offset + pair[1], zip(messages, count(), strict=False))
    return tuple(message for message, _ in dense)


class TieredBackend:
    """Fills `ports.Backend`: another one, whose streams reach back into the archive."""

    def __init__(self, hot: Backend, archive: Archive, rules: Rulebook, clock: Clock, limit: int) -> None:
        self._hot = hot
        self._archive = archive
        self.streams: StreamStore = TieredStreams(hot.streams, archive, rules, clock, limit)

    @property
    def sessions(self) -> SessionStore:
        return self._hot.sessions

    @property
    def presence(self) -> PresenceStore:
        return self._hot.presence

    async def start(self) -> None:
        await self._hot.start()

    async def stop(self) -> None:
        await self._archive.stop()
        await self._hot.stop()

    def trouble(self) -> str:
        """Publishing and hot history work without the archive, so its trouble is in the log and no reason to be unhealthy."""
        return self._hot.trouble()

    async def sweep(self) -> None:
        await self._hot.sweep()

    def gauges(self) -> dict[str, float]:
        return {**self._hot.gauges(), **self._archive.gauges()}

"""Tiered history: messages that left the hot history are read from the archive and joined to it.

Invariant: an answer is dense, or a gap marks each hole. The hot part is read first, and the cold part ends where it begins.
Messages published while the archive is read are delivered live.
"""

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from ropewalk.model.errors import Unavailable
from ropewalk.model.history import (
    MAX_ANSWER_MESSAGES,
    ColdPiece,
    Gap,
    GapReason,
    HistoryPage,
    HistoryRange,
    Replay,
    StreamSummary,
    limit_answer,
)
from ropewalk.model.messages import Position, Publication, Receipt, Registered
from ropewalk.ports import Archive, Backend, Feed, Leases, PresenceStore, RecordQueue, SessionStore, StreamStore

logger = logging.getLogger("ropewalk.archive")


class TieredStreams:
    """Implements `ports.StreamStore` over a hot one. `limit`: cold messages in one answer, which is also limited in bytes. The
    rest needs further requests."""

    def __init__(self, hot: StreamStore, archive: Archive, limit: int) -> None:
        self._hot = hot
        self._archive = archive
        self._limit = min(limit, MAX_ANSWER_MESSAGES)

    @property
    def resolves_unanswered(self) -> bool:
        return self._hot.resolves_unanswered

    @property
    def confirms_transient(self) -> bool:
        return self._hot.confirms_transient

    @property
    def instant(self) -> bool:
        return self._hot.instant

    async def append(self, publications: Sequence[Publication]) -> list[Receipt]:
        return await self._hot.append(publications)

    async def tip(self, stream: str) -> Position:
        return await self._hot.tip(stream)

    async def partition_key(self, stream: str) -> str:
        return await self._hot.partition_key(stream)

    async def summaries(self, after: str, limit: int) -> list[StreamSummary]:
        return await self._hot.summaries(after, limit)

    async def replay(self, stream: str, position: Position) -> Replay | Gap:
        hot = await self._hot.replay(stream, position)
        if isinstance(hot, Replay) or hot.reason is not GapReason.TRIMMED:
            return hot
        first = position.offset + 1
        return _join(await self._read(HistoryRange(stream, hot.epoch, first, hot.oldest - 1, self._limit)), first, hot)

    async def since(self, stream: str, timestamp: float) -> Replay | Gap:
        hot = await self._hot.since(stream, timestamp)
        if isinstance(hot, Replay) or hot.reason is not GapReason.TRIMMED:
            return hot
        cold = await self._read_archive(HistoryRange(stream, hot.epoch, 1, hot.oldest - 1, self._limit, timestamp))
        if cold is None:
            return hot  # an empty piece instead would make the hot part a complete answer
        first = cold.messages[0].offset if cold.messages else hot.oldest
        answer = _join(cold, first, hot)
        # The answer is complete only if the message before it is archived too: then that one is older than `timestamp`.
        if first == 1 or (await self._read(HistoryRange(stream, hot.epoch, first - 1, first - 1, 1))).messages:
            return answer
        return replace(hot, oldest=first, rest=answer) if cold.messages else hot

    async def page(self, stream: str, after: int, limit: int) -> HistoryPage | None:
        hot = await self._hot.page(stream, after, limit)
        if hot is None or after + 1 >= hot.oldest:
            return hot
        cold = await self._read(HistoryRange(stream, hot.epoch, after + 1, hot.oldest - 1, min(limit, self._limit)))
        found, _ = limit_answer((cold.messages if cold.more else cold.messages + hot.messages)[:limit])
        messages = _up_to_hole(found)
        begin = messages[0].offset if messages else hot.oldest
        oldest = begin if after == 0 or begin > after + 1 else await self._oldest(stream, hot, begin)
        more = bool(messages) and messages[-1].offset < hot.tip
        return HistoryPage(stream, hot.epoch, hot.tip, oldest, messages, messages[-1].offset if more else None)

    async def _oldest(self, stream: str, hot: HistoryPage, begin: int) -> int:
        """The oldest archived offset. `begin`, which is archived, if the archive is unavailable."""
        first = await self._read(HistoryRange(stream, hot.epoch, 1, hot.oldest - 1, 1))
        return first.messages[0].offset if first.messages else begin

    async def _read(self, wanted: HistoryRange) -> ColdPiece:
        """Read the archive, and treat an unavailable one as empty: the answer then has a gap, and can be requested again."""
        return await self._read_archive(wanted) or ColdPiece()

    async def _read_archive(self, wanted: HistoryRange) -> ColdPiece | None:
        """Returns None if the archive is unavailable."""
        try:
            key = await self._hot.partition_key(wanted.stream)
            piece = await self._archive.read(key, wanted)
        except Unavailable as error:
            # The archive logs its own failures once; this line is logged for every request.
            logger.debug("cold history is not available", extra={"stream": wanted.stream, "reason": str(error)})
            return None
        messages, more = limit_answer(piece.messages)
        return ColdPiece(messages, more or piece.more)


def _join(cold: ColdPiece, first: int, hot: Gap) -> Replay | Gap:
    """Cold messages from `first` on, then hot ones, with a gap at each hole. `hot`: a TRIMMED gap with the hot messages."""
    runs = _split_at_holes(cold.messages, first)
    reached = cold.messages[-1].offset + 1 if cold.messages else first
    answer: Replay | Gap
    if cold.more:
        answer = Gap(hot.stream, GapReason.PARTIAL, hot.epoch, reached, hot.tip, runs[-1])
    elif reached < hot.oldest:
        answer = replace(hot, messages=runs[-1])
    else:
        kept = hot.rest or Replay(hot.stream, hot.epoch, hot.tip)
        messages, cut = limit_answer(runs[-1] + kept.messages)
        more = cut or (isinstance(kept, Replay) and kept.more)
        answer = Replay(hot.stream, hot.epoch, hot.tip, messages, more)
    for run, following in zip(reversed(runs[:-1]), reversed(runs[1:]), strict=True):
        answer = Gap(hot.stream, GapReason.TRIMMED, hot.epoch, following[0].offset, hot.tip, run, answer)
    return answer


def _split_at_holes(messages: Sequence[Registered], first: int) -> list[tuple[Registered, ...]]:
    """Split the messages at every hole into dense runs. The first run begins at `first`, or is empty."""
    runs: list[list[Registered]] = [[]]
    expected = first
    for message in messages:
        if message.offset != expected:
            runs.append([])
        runs[-1].append(message)
        expected = message.offset + 1
    return [tuple(run) for run in runs]


def _up_to_hole(messages: Sequence[Registered]) -> tuple[Registered, ...]:
    """The messages up to the first missing offset. The next page begins after the hole, as its `oldest` shows."""
    return _split_at_holes(messages, messages[0].offset)[0] if messages else ()


class TieredBackend:
    """Implements `ports.Backend` over a hot one: adds the archive to its streams."""

    def __init__(self, hot: Backend, archive: Archive, limit: int) -> None:
        self._hot = hot
        self._archive = archive
        self.streams: StreamStore = TieredStreams(hot.streams, archive, limit)

    @property
    def sessions(self) -> SessionStore:
        return self._hot.sessions

    @property
    def presence(self) -> PresenceStore:
        return self._hot.presence

    @property
    def feed(self) -> Feed:
        return self._hot.feed

    @property
    def leases(self) -> Leases | None:
        return self._hot.leases

    @property
    def record_queue(self) -> RecordQueue | None:
        return self._hot.record_queue

    def reload_rules(self) -> None:
        self._hot.reload_rules()

    async def start(self) -> None:
        await self._hot.start()

    async def stop(self) -> None:
        await self._archive.stop()
        await self._hot.stop()

    def health(self) -> str:
        """Publishing and hot history work without the archive. So its failure is logged and does not make the node
        unhealthy."""
        return self._hot.health()

    async def sweep(self) -> None:
        await self._hot.sweep()

    def gauges(self) -> dict[str, float]:
        return self._hot.gauges()

"""Implements `ports.StreamStore`: reads what was registered. Writing is in `appends`.

Invariant: the tip is asked of the leader, and a history that does not reach it is read again: whoever follows the leader may be
behind, and nobody may be told that a position is gone or was never given because of that.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ropewalk.adapters.backends.nats import jets, runs
from ropewalk.adapters.backends.nats.appends import Appends
from ropewalk.adapters.backends.nats.link import Stored
from ropewalk.adapters.backends.nats.names import name_of
from ropewalk.adapters.backends.nats.shard import JetShard
from ropewalk.core.history import BEFORE_ALL, HistoryTotals, StreamLog
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import Unavailable
from ropewalk.model.history import Gap, GapReason, HistoryPage, Replay, StreamSummary
from ropewalk.model.messages import Position
from ropewalk.ports import Clock

READ_AT_ONCE = 256
READS = 20
READ_AGAIN_SECONDS = 0.05
SUMMARISED_AT_ONCE = 32


class NatsStreams:
    resolves_unanswered = True  # every run has an id, by which it is found again
    answers_transient = False
    instant = False

    def __init__(
        self,
        shards: Callable[[], Sequence[JetShard]],
        shard_of: Callable[[str], JetShard],
        appends: Appends,
        rulebook: Rulebook,
        clock: Clock,
        forget: Callable[[str], float],
    ) -> None:
        self._shards = shards
        self._shard_of = shard_of
        self.append = appends.append
        self._rulebook = rulebook
        self._clock = clock
        self._forget = forget

    async def replay(self, stream: str, position: Position) -> Replay | Gap:
        last = await self._last(stream)
        if last is not None and _is_ahead(position, last):
            # Whoever asks may know more than a server that was paused and does not know yet that another one leads. Once a
            # majority has stored something, it does.
            await self._shard_of(stream).probe()
            last = await self._last(stream)
        if last is None:
            return Replay(stream, "", 0) if position == BEFORE_ALL else Gap(stream, GapReason.EPOCH_CHANGED, "", 1, 0)
        run = runs.decode(last.data)
        if position == Position(run.epoch, run.tip):
            return Replay(stream, run.epoch, run.tip)
        return (await self._log(stream, last)).after(position, self._clock())

    async def since(self, stream: str, timestamp: float) -> Replay | Gap:
        last = await self._last(stream)
        if last is None:
            return Replay(stream, "", 0)
        return (await self._log(stream, last)).since(timestamp, self._clock())

    async def tip(self, stream: str) -> Position:
        last = await self._last(stream)
        if last is None:
            return BEFORE_ALL
        run = runs.decode(last.data)
        return Position(run.epoch, run.tip)

    async def partition_key(self, stream: str) -> str:
        last = await self._last(stream)
        return (runs.decode(last.data).partition_key if last is not None else "") or stream

    async def page(self, stream: str, after: int, limit: int) -> HistoryPage | None:
        last = await self._last(stream)
        return None if last is None else (await self._log(stream, last)).page(after, limit, self._clock())

    async def summaries(self, after: str, limit: int) -> list[StreamSummary]:
        names = sorted(name for name in await self.names() if name > after)
        found: list[StreamSummary] = []
        while names and len(found) < limit:
            some, names = names[:SUMMARISED_AT_ONCE], names[SUMMARISED_AT_ONCE:]
            found += [summary for summary in await asyncio.gather(*map(self._summary, some)) if summary is not None]
        return found[:limit]

    async def _summary(self, stream: str) -> StreamSummary | None:
        log = await self.log(stream)
        return None if log is None else log.summary(self._clock())

    async def log(self, stream: str, kept: HistoryTotals | None = None) -> StreamLog | None:
        """The kept history of a stream; None for one that nobody has heard of."""
        last = await self._last(stream)
        return None if last is None else await self._log(stream, last, kept)

    async def names(self) -> list[str]:
        """Of all streams, those among them that are about to be forgotten too."""
        return [name for names in await asyncio.gather(*map(self._names, self._shards())) for name in names]

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _last(self, stream: str) -> Stored | None:
        """The last run of a stream that is not forgotten."""
        shard = self._shard_of(stream)
        await shard.verify()
        last = await shard.last(stream)
        if last is None or runs.decode(last.data).timestamp + self._forget(stream) <= self._clock():
            return None
        return last

    async def _log(self, stream: str, last: Stored, kept: HistoryTotals | None = None) -> StreamLog:
        shard = self._shard_of(stream)
        for _ in range(READS):
            found = await self._runs(shard, shard.subject(stream))
            if found and found[-1].seq >= last.seq:
                return self._log_of(stream, found, kept or HistoryTotals())
            await asyncio.sleep(READ_AGAIN_SECONDS)
        raise Unavailable("the servers of NATS do not agree on a stream yet")

    async def _runs(self, shard: JetShard, subject: str) -> list[Stored]:
        found: list[Stored] = []
        more = True
        while more:
            start = found[-1].seq + 1 if found else 1
            some, more = await shard.link.read(shard.jet, start, subject, READ_AT_ONCE)
            found += some
            more = more and bool(some)
        return found

    def _log_of(self, stream: str, found: Sequence[Stored], kept: HistoryTotals) -> StreamLog:
        """What joins up to the last run. Something older may be trimmed away while it is being read."""
        joined: list[runs.Run] = []
        for stored in reversed(found):
            run = runs.decode(stored.data)
            if joined and (run.epoch != joined[-1].epoch or run.tip != joined[-1].first - 1):
                break
            joined.append(run)
        log = StreamLog(stream, joined[0].epoch, self._rulebook.of(stream), kept)
        for run in reversed(joined):
            for message in run.messages(kept=True):
                log.place(message)
        return log

    async def _names(self, shard: JetShard) -> list[str]:
        await shard.verify()
        found: list[str] = []
        for subject in await subjects(shard, shard.names.streams(shard.generation)):
            name = name_of(subject.rpartition(".")[2])
            if name is None:
                stored = await shard.link.last(shard.jet, subject)
                name = runs.decode(stored.data).stream if stored is not None else None
            if name is not None:
                found.append(name)
        return found


def _is_ahead(position: Position, last: Stored) -> bool:
    run = runs.decode(last.data)
    return position.epoch == run.epoch and position.offset > run.tip


async def subjects(shard: JetShard, pattern: str) -> list[str]:
    """All subjects of a shard that have messages."""
    found: list[str] = []
    while True:
        answer: Any = await jets.info(shard.link, shard.jet, {"subjects_filter": pattern, "offset": len(found)})
        some = (answer or {}).get("state", {}).get("subjects") or {}
        found += some
        if not some or len(found) >= answer.get("total", 0):
            return found

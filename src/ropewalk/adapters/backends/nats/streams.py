"""Implements `ports.StreamStore`: reads registered messages. Writing is in `appends`.

Invariant: the tip is read from the leader. A follower may lag behind, so a history that ends before the tip is read again, and
is never reported as a gap.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from random import sample
from typing import Any

import msgspec

from ropewalk.adapters.backends.nats import jets, runs
from ropewalk.adapters.backends.nats.appends import Appends
from ropewalk.adapters.backends.nats.link import Stored
from ropewalk.adapters.backends.nats.names import decode_token
from ropewalk.adapters.backends.nats.plan import Marker
from ropewalk.adapters.backends.nats.runs import Run
from ropewalk.adapters.backends.nats.shard import JetShard
from ropewalk.core.history import BEFORE_ALL
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import Unavailable
from ropewalk.model.history import MAX_ANSWER_BYTES, MESSAGE_OVERHEAD_BYTES, Gap, GapReason, HistoryPage, Replay, StreamSummary
from ropewalk.model.messages import Position, Registered
from ropewalk.model.rules import StreamRules
from ropewalk.ports import Clock


class KeptHistory:
    """The kept history of one stream, built from its runs: the last one first, then all from the oldest on.

    Args:
        after: the offset before the wanted messages.
        since: the time of the oldest wanted message.
        limit: maximum number of messages; 0 for no limit.

    Attributes:
        trimmed_at: the time of the newest message that is no longer kept.
        full: no further message fits into the answer.
    """

    def __init__(self, last: Run, rules: StreamRules, now: float, after: int = 0, since: float = -inf, limit: int = 0) -> None:
        self.stream, self.epoch, self.tip = last.stream, last.epoch, last.tip
        self._after = after
        self._since = since
        self._limit = limit
        self._oldest_by_number = self.tip + 1 - (rules.history_limit if rules.history_ttl > 0 else 0)
        self._expired = now - rules.history_ttl
        self._next = -1
        self.oldest = self.tip + 1
        self.trimmed_at = last.timestamp
        self.messages: list[Registered] = []
        self.full = False
        self.bytes = 0  # of all kept messages read so far
        self._room = MAX_ANSWER_BYTES

    @property
    def kept(self) -> int:
        return self.tip + 1 - self.oldest

    @property
    def enough(self) -> bool:
        """Further runs would change nothing."""
        return self.full or (self._after >= self.tip and self.kept > 0)

    def add(self, run: Run) -> bool:
        """Returns whether some of its messages are in the answer."""
        if run.epoch != self.epoch:
            return False
        if run.first != self._next:
            self._begin(run)
        self._next = run.tip + 1
        had = len(self.messages)
        for message in run.messages(kept=True):
            if message.offset <= self.tip:
                self._add(message)
        return len(self.messages) > had

    def _begin(self, run: Run) -> None:
        """Restart from this run: the messages before it are gone. The last of them was not later than this run."""
        self.oldest, self.trimmed_at = self.tip + 1, run.timestamp if run.first > 1 else -inf
        self.messages, self.full, self.bytes, self._room = [], False, 0, MAX_ANSWER_BYTES

    def _add(self, message: Registered) -> None:
        if message.offset < self._oldest_by_number or message.timestamp <= self._expired:
            self.trimmed_at = message.timestamp
            return
        self.oldest = min(self.oldest, message.offset)
        self.bytes += message.size
        if self.full or message.offset <= self._after or message.timestamp < self._since:
            return
        self._room -= message.size + MESSAGE_OVERHEAD_BYTES
        self.full = self._room < 0 and bool(self.messages)
        if not self.full:
            self.messages.append(message)
            self.full = len(self.messages) == self._limit


READ_AT_ONCE = 256
READ_BYTES = 1024 * 1024
"""Maximum number of runs and bytes in one answer of JetStream. It has at least one run."""

REMEMBERED_ENDS = 4096
"""Cached ends of answers, so that the next page does not start from the oldest run."""

READS = 20
READ_AGAIN_SECONDS = 0.05
SUMMARISED_AT_ONCE = 32


class NatsStreams:
    resolves_unanswered = True  # a run is found again by its id
    confirms_transient = False
    instant = False

    def __init__(
        self,
        shards: Callable[[], Sequence[JetShard]],
        shard_for: Callable[[str], JetShard],
        appends: Appends,
        rulebook: Rulebook,
        clock: Clock,
        forget: Callable[[str], float],
    ) -> None:
        self._shards = shards
        self._shard_for = shard_for
        self.append = appends.append
        self._rulebook = rulebook
        self._clock = clock
        self._forget = forget
        self._ends: dict[tuple[str, str, int], int] = {}

    async def replay(self, stream: str, position: Position) -> Replay | Gap:
        last = await self._last(stream)
        if last is not None and _is_ahead(position, last):
            # The answer may be from a paused server that does not know of a new leader yet. It knows once a majority has
            # stored a message.
            await self._shard_for(stream).probe()
            last = await self._last(stream)
        if last is None:
            return Replay(stream, "", 0) if position == BEFORE_ALL else Gap(stream, GapReason.EPOCH_CHANGED, "", 1, 0)
        run = runs.decode(last.data)
        if position == Position(run.epoch, run.tip):
            return Replay(stream, run.epoch, run.tip)
        if position.epoch != run.epoch and position != BEFORE_ALL:
            return _gap(await self._history(stream, last), GapReason.EPOCH_CHANGED)
        history = await self._history(stream, last, position.offset)
        if position.offset > run.tip:
            return Gap(stream, GapReason.AHEAD, run.epoch, history.oldest, run.tip)
        return _gap(history, GapReason.TRIMMED) if position.offset < history.oldest - 1 else _replay(history)

    async def since(self, stream: str, timestamp: float) -> Replay | Gap:
        last = await self._last(stream)
        if last is None:
            return Replay(stream, "", 0)
        history = await self._history(stream, last, since=timestamp)
        return _gap(history, GapReason.TRIMMED) if history.trimmed_at >= timestamp else _replay(history)

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
        if last is None:
            return None
        history = await self._history(stream, last, after, limit=limit)
        tip, messages = history.tip, tuple(history.messages)
        oldest = history.oldest
        if (stream, history.epoch, after) in self._ends:  # older runs were skipped
            oldest = (await self._history(stream, last, tip)).oldest
        more = bool(messages) and messages[-1].offset < tip
        return HistoryPage(stream, history.epoch, tip, oldest, messages, messages[-1].offset if more else None)

    async def summaries(self, after: str, limit: int) -> list[StreamSummary]:
        names = sorted(name for name in await self.names() if name > after)
        found: list[StreamSummary] = []
        while names and len(found) < limit:
            some, names = names[:SUMMARISED_AT_ONCE], names[SUMMARISED_AT_ONCE:]
            found += [summary for summary in await asyncio.gather(*map(self._summary, some)) if summary is not None]
        return found[:limit]

    async def _summary(self, stream: str) -> StreamSummary | None:
        last = await self._last(stream)
        if last is None:
            return None
        history = await self._history(stream, last, runs.decode(last.data).tip)
        return StreamSummary(stream, history.epoch, history.tip, history.oldest, history.kept)

    async def kept(self, stream: str) -> tuple[int, int] | None:
        """The number of kept messages and their bytes; None for an unknown stream."""
        last = await self._last(stream)
        if last is None:
            return None
        history = await self._read(stream, last, self._new_history(stream, last, since=inf), 1)
        return history.kept, history.bytes

    async def names(self) -> list[str]:
        """The names of all streams, including expired ones not yet removed."""
        return [name for names in await asyncio.gather(*map(self._names, self._shards())) for name in names]

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _last(self, stream: str) -> Stored | None:
        """The last run of a stream, None if the stream has expired."""
        shard = self._shard_for(stream)
        await shard.verify()
        last = await shard.last(stream)
        if last is None or runs.decode(last.data).timestamp + self._forget(stream) <= self._clock():
            return None
        return last

    async def _history(self, stream: str, last: Stored, after: int = 0, since: float = -inf, limit: int = 0) -> KeptHistory:
        """Continue where the previous answer ended, if it is cached."""
        epoch = runs.decode(last.data).epoch
        begin = self._ends.get((stream, epoch, after), 1)
        return await self._read(stream, last, self._new_history(stream, last, after, since, limit), begin)

    def _new_history(self, stream: str, last: Stored, after: int = 0, since: float = -inf, limit: int = 0) -> KeptHistory:
        return KeptHistory(runs.decode(last.data), self._rulebook.of(stream), self._clock(), after, since, limit)

    async def _read(self, stream: str, last: Stored, history: KeptHistory, begin: int) -> KeptHistory:
        for _ in range(READS):
            if await self._read_runs(stream, history, begin) >= last.seq or history.enough:
                return history
            await asyncio.sleep(READ_AGAIN_SECONDS)
        raise Unavailable("the NATS servers are not in sync yet")

    async def _read_runs(self, stream: str, history: KeptHistory, begin: int) -> int:
        """Returns the sequence of the last run read."""
        shard = self._shard_for(stream)
        more, reached = True, begin - 1
        while more and not history.enough:
            found, more = await shard.link.read(shard.jet, reached + 1, shard.subject(stream), READ_AT_ONCE, READ_BYTES)
            for stored in found:
                if history.add(runs.decode(stored.data)) and history.full:
                    self._remember_end(history, stored.seq)
                reached = stored.seq
            more = more and bool(found)
        return reached

    def _remember_end(self, history: KeptHistory, sequence: int) -> None:
        if len(self._ends) >= REMEMBERED_ENDS:
            del self._ends[next(iter(self._ends))]
        self._ends[history.stream, history.epoch, history.messages[-1].offset] = sequence

    async def _names(self, shard: JetShard) -> list[str]:
        await shard.verify()
        found: list[str] = []
        for subject in await subjects(shard, shard.names.streams(shard.generation)):
            name = decode_token(subject.rpartition(".")[2])
            if name is None:
                stored = await shard.link.last(shard.jet, subject)
                name = runs.decode(stored.data).stream if stored is not None else None
            if name is not None:
                found.append(name)
        return found


def _replay(history: KeptHistory) -> Replay:
    messages = tuple(history.messages)
    more = bool(messages) and messages[-1].offset < history.tip
    return Replay(history.stream, history.epoch, history.tip, messages, more)


def _gap(history: KeptHistory, reason: GapReason) -> Gap:
    """A gap before all kept messages."""
    rest = _replay(history) if history.messages else None
    return Gap(history.stream, reason, history.epoch, history.oldest, history.tip, rest=rest)


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


MAX_COUNTED = 100
MAX_LISTED = 20_000


async def count_streams(streams: NatsStreams, shards: list[JetShard], clock: Clock, dedup_limit: int) -> dict[str, float]:
    """Count kept messages, and remove the oldest idempotency keys above the limit. Raises `Unavailable`.

    Above `MAX_COUNTED` streams or keys the sizes are estimated from a sample. Above `MAX_LISTED` subjects they are the
    counts of NATS.
    """
    states = [found["state"] for shard in shards if (found := await jets.info(shard.link, shard.jet)) is not None]
    if sum(state.get("num_subjects", 0) for state in states) > MAX_LISTED:
        for shard in shards:
            await shard.purge(shard.names.uids, dedup_limit // len(shards))
        return {
            "streams": sum(state.get("num_subjects", 0) for state in states),
            "history_messages": sum(state["messages"] for state in states),
            "history_bytes": sum(state["bytes"] for state in states),
            "dedup_keys": 0,
        }
    return await _sampled(streams, shards, clock, dedup_limit)


async def _sampled(streams: NatsStreams, shards: list[JetShard], clock: Clock, dedup_limit: int) -> dict[str, float]:
    now = clock()
    names = await streams.names()
    sampled = names if len(names) <= MAX_COUNTED else sample(names, MAX_COUNTED)
    kept = [each for each in await asyncio.gather(*map(streams.kept, sampled)) if each is not None]
    scale = len(names) / len(sampled) if sampled else 0.0
    keys = [(shard, subject) for shard in shards for subject in await _uids(shard)]
    if len(keys) > dedup_limit:
        of_shard = Counter(shard for shard, _ in keys)
        for shard, number in of_shard.items():
            await shard.purge(shard.names.uids, dedup_limit * number // len(keys))
        keys = [(shard, subject) for shard in shards for subject in await _uids(shard)]
    some = keys if len(keys) <= MAX_COUNTED else sample(keys, MAX_COUNTED)
    known = await asyncio.gather(*(_is_known(shard, subject, now) for shard, subject in some))
    return {
        "streams": round(len(kept) * scale),
        "history_messages": round(sum(messages for messages, _ in kept) * scale),
        "history_bytes": round(sum(size for _, size in kept) * scale),
        "dedup_keys": round(sum(known) * len(keys) / len(some)) if some else 0,
    }


async def _uids(shard: JetShard) -> list[str]:
    return await subjects(shard, shard.names.uids)


async def _is_known(shard: JetShard, subject: str, now: float) -> bool:
    stored = await shard.link.last(shard.jet, subject)
    return stored is not None and msgspec.msgpack.decode(stored.data, type=Marker).until > now

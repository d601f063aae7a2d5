"""One shard: its JetStream stream, its generation, and how far its streams have come.

Invariant: a position is never given twice. What a node knows of the end of a shard is compared with what NATS has whenever that
may have changed; if some of it was lost, a new generation begins, in which every stream has a new epoch.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from ropewalk.adapters.backends.nats import jets, runs
from ropewalk.adapters.backends.nats.link import ApiError, NatsLink, Stored
from ropewalk.adapters.backends.nats.names import ShardNames
from ropewalk.model.errors import Unavailable

logger = logging.getLogger("ropewalk.nats")

REMEMBERED = 20_000
"""Streams of a shard whose tip a node remembers. One beyond that costs a question."""


class StreamEnd(Struct, frozen=True):
    """`sequence`: of the JetStream message that has it; 0: the stream was never heard of."""

    sequence: int = 0
    epoch: str = ""
    offset: int = 0
    timestamp: float = 0.0
    partition_key: str = ""


NO_TIP = StreamEnd()


def tip_of(stored: Stored) -> StreamEnd:
    run = runs.decode(stored.data)
    return StreamEnd(stored.seq, run.epoch, run.tip, run.timestamp, run.partition_key)


class ShardEnd(Struct, frozen=True, array_like=True):
    """What a node knows of the end of a shard: which one it is, the highest sequence it has seen there, and the id of the run
    that it has."""

    created: str = ""
    generation: int = 1
    sequence: int = 0
    run: str = ""


class JetShard:
    """`witnesses` asks the other nodes what they have seen of it."""

    def __init__(
        self,
        link: NatsLink,
        names: ShardNames,
        replicas: int,
        most_runs: Callable[[], int],
        witnesses: "Callable[[JetShard], Awaitable[list[ShardEnd]]]",
    ) -> None:
        self.link = link
        self.names = names
        self._replicas = replicas
        self._most_runs = most_runs
        self._peer_tips = witnesses
        self.seen = ShardEnd()
        self._doubts, self._verified = 1, 0
        self.lives = 0  # how often it began anew
        self.tips: OrderedDict[str, StreamEnd] = OrderedDict()
        self._checking: asyncio.Lock = asyncio.Lock()

    @property
    def generation(self) -> int:
        return self.seen.generation

    @property
    def jet(self) -> str:
        return self.names.jet

    def subject(self, stream: str) -> str:
        return self.names.stream(self.generation, stream)

    # --- tips ---------------------------------------------------------------------------------------------------------

    async def last(self, stream: str) -> Stored | None:
        """The last run of a stream, as the leader has it."""
        stored = await self.link.last(self.jet, self.subject(stream))
        if stored is not None:
            run = runs.decode(stored.data)
            self.saw(stored.seq, run.id)
        return stored

    async def load_tip(self, stream: str) -> StreamEnd:
        stored = await self.last(stream)
        return self.remember(stream, NO_TIP if stored is None else tip_of(stored))

    def remember(self, stream: str, tip: StreamEnd) -> StreamEnd:
        self.tips[stream] = tip
        self.tips.move_to_end(stream)
        if len(self.tips) > REMEMBERED:
            self.tips.popitem(last=False)
        return tip

    async def purge(self, subject: str, keep: int) -> None:
        """Remove all but the newest messages of a subject. Raises `Unavailable`."""
        try:
            await self.link.api(f"STREAM.PURGE.{self.jet}", {"filter": subject, "keep": keep})
        except ApiError as error:
            raise Unavailable(f"JetStream refuses: {error}") from None

    def saw(self, sequence: int, run_id: str) -> None:
        if sequence > self.seen.sequence:
            self.seen = ShardEnd(self.seen.created, self.seen.generation, sequence, run_id)

    # --- what NATS has ------------------------------------------------------------------------------------------------

    def doubt(self) -> None:
        """What NATS has may not be what this node knows any more."""
        self._doubts += 1

    async def verify(self) -> None:
        """Before anything is answered or registered: make the stream where it is missing, and begin a new generation where its
        end was lost. Raises `Unavailable`."""
        while self._verified != self._doubts:
            async with self._checking:
                if (doubts := self._doubts) != self._verified:
                    await self._compare()
                    self._verified = doubts

    async def _compare(self) -> None:
        # In this order: what is known now is compared with what NATS has after that, which may only be more.
        known = [self.seen, *await self._peer_tips(self)]
        found = await jets.ensure(self.link, self._config())
        if self.seen.created and found["created"] != self.seen.created:
            logger.error("what NATS kept of a shard is lost; its streams begin anew", extra={"jetstream": self.jet})
        for seen in known:
            if seen.created == found["created"] and await self._lost(seen, found):
                found = await self._agreed()
                if not await self._lost(seen, found):
                    continue
                logger.error("NATS has lost the end of a shard; its streams begin anew", extra={"jetstream": self.jet})
                found = await self._begin_generation(found)
        if (found["created"], _generation(found)) != (self.seen.created, self.seen.generation):
            # Nothing that was known of it before holds any more.
            self.seen = ShardEnd(found["created"], _generation(found))
            self.lives += 1
        self.tips.clear()

    async def _lost(self, seen: ShardEnd, found: Any) -> bool:
        if seen.generation != _generation(found):
            return seen.generation > _generation(found)  # otherwise another node has seen to it
        if found["state"]["last_seq"] < seen.sequence:
            return True
        if not seen.run:
            return False
        # Others may have written past it since. What was removed in the ordinary way says nothing.
        stored = await self.link.at(self.jet, seen.sequence)
        return stored is not None and not _is_run(stored, seen.run)

    async def _agreed(self) -> Any:
        """What NATS has, by what a majority of its servers has stored: of several, one that has lost touch with the others
        answers too, with what it had then; but it acknowledges nothing."""
        stored = await self.probe()
        found = await jets.ensure(self.link, self._config())
        return {**found, "state": {**found["state"], "last_seq": stored - 1}}

    async def probe(self) -> int:
        """The sequence of a message that says nothing, once a majority of the servers has it. Raises `Unavailable`."""
        return await jets.store(self.link, [jets.JetWrite(self.names.probe, b"", ttl=0)])

    async def _begin_generation(self, found: Any) -> Any:
        generation = max(_generation(found), self.generation) + 1
        kept = {key: value for key, value in found["config"].items() if key not in ("subjects", "republish", "metadata")}
        return await jets.update(self.link, {**kept, **self._of_generation(generation)})

    def _of_generation(self, generation: int) -> dict[str, Any]:
        return {
            "subjects": self.names.subjects(generation),
            "republish": self.names.republish(generation),
            "metadata": {"rw-generation": str(generation)},
        }

    def _config(self) -> dict[str, Any]:
        first = self._of_generation(1)
        return jets.config(self.jet, first.pop("subjects"), self._replicas, self._most_runs(), **first)


def _generation(found: Any) -> int:
    return int(found["config"]["metadata"]["rw-generation"])


def _is_run(stored: Stored, run_id: str) -> bool:
    try:
        return runs.decode(stored.data).id == run_id
    except ValueError:
        return False

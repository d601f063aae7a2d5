"""One shard: its JetStream stream, its generation, and the tips of its streams.

Invariant: a position is never assigned twice. Whenever NATS may have lost messages, the node compares the newest message it has
seen with the state of NATS. If messages were lost, it begins a new generation with new epochs.
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

MAX_TIPS = 20_000
"""Cached tips per shard. A cache miss costs one request."""


class StreamEnd(Struct, frozen=True):
    """The tip of a stream. `sequence`: of the JetStream message that contains it; 0 if there is none."""

    sequence: int = 0
    epoch: str = ""
    offset: int = 0
    timestamp: float = 0.0
    partition_key: str = ""


NO_TIP = StreamEnd()


def decode_tip(stored: Stored) -> StreamEnd:
    run = runs.decode(stored.data)
    return StreamEnd(stored.seq, run.epoch, run.tip, run.timestamp, run.partition_key)


class ShardEnd(Struct, frozen=True, array_like=True):
    """The newest message that a node has seen in a shard: the creation time and generation of the shard, and the message's
    sequence and run id."""

    created: str = ""
    generation: int = 1
    sequence: int = 0
    run: str = ""


class JetShard:
    """`peer_tips` requests the newest messages that other nodes have seen."""

    def __init__(
        self,
        link: NatsLink,
        names: ShardNames,
        replicas: int,
        max_runs: Callable[[], int],
        peer_tips: "Callable[[JetShard], Awaitable[list[ShardEnd]]]",
    ) -> None:
        self.link = link
        self.names = names
        self._replicas = replicas
        self._max_runs = max_runs
        self._peer_tips = peer_tips
        self.seen = ShardEnd()
        self._version, self._verified_version = 1, 0
        self.incarnation = 0  # how often the shard was replaced or began a new generation
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
        """The last run of a stream, read from the leader."""
        stored = await self.link.last(self.jet, self.subject(stream))
        if stored is not None:
            run = runs.decode(stored.data)
            self.saw(stored.seq, run.id)
        return stored

    async def load_tip(self, stream: str) -> StreamEnd:
        stored = await self.last(stream)
        return self.remember(stream, NO_TIP if stored is None else decode_tip(stored))

    def remember(self, stream: str, tip: StreamEnd) -> StreamEnd:
        self.tips[stream] = tip
        self.tips.move_to_end(stream)
        if len(self.tips) > MAX_TIPS:
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

    # --- verification -------------------------------------------------------------------------------------------------

    def invalidate(self) -> None:
        """Verify the shard before its next use: NATS may have lost messages."""
        self._version += 1

    async def verify(self) -> None:
        """Called before every read and write. Creates a missing JetStream stream, and begins a new generation if the newest
        messages were lost. Raises `Unavailable`."""
        while self._verified_version != self._version:
            async with self._checking:
                if (version := self._version) != self._verified_version:
                    await self._compare()
                    self._verified_version = version

    async def _compare(self) -> None:
        # In this order: NATS may only have more than was known before the request.
        known = [self.seen, *await self._peer_tips(self)]
        found = await jets.ensure(self.link, self._config())
        if self.seen.created and found["created"] != self.seen.created:
            logger.error("NATS has lost a shard; its streams begin new epochs", extra={"jetstream": self.jet})
        for seen in known:
            if seen.created == found["created"] and await self._lost(seen, found):
                found = await self._majority_state()
                if not await self._lost(seen, found):
                    continue
                logger.error(
                    "NATS has lost the newest messages of a shard; its streams begin new epochs", extra={"jetstream": self.jet}
                )
                found = await self._begin_generation(found)
        if (found["created"], _generation(found)) != (self.seen.created, self.seen.generation):
            # All earlier knowledge of the shard is obsolete.
            self.seen = ShardEnd(found["created"], _generation(found))
            self.incarnation += 1
        self.tips.clear()

    async def _lost(self, seen: ShardEnd, found: Any) -> bool:
        if seen.generation != _generation(found):
            return seen.generation > _generation(found)  # otherwise another node has begun a new generation
        if found["state"]["last_seq"] < seen.sequence:
            return True
        if not seen.run:
            return False
        # Other nodes may have written since. A message that was trimmed proves nothing.
        stored = await self.link.at(self.jet, seen.sequence)
        return stored is not None and not _is_run(stored, seen.run)

    async def _majority_state(self) -> Any:
        """The state that a majority of the servers has stored. A server that is cut off answers reads with its old state, but
        it acknowledges no writes."""
        stored = await self.probe()
        found = await jets.ensure(self.link, self._config())
        return {**found, "state": {**found["state"], "last_seq": stored - 1}}

    async def probe(self) -> int:
        """Store an empty message on a majority of the servers. Returns its sequence. Raises `Unavailable`."""
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
        return jets.config(self.jet, first.pop("subjects"), self._replicas, self._max_runs(), **first)


def _generation(found: Any) -> int:
    return int(found["config"]["metadata"]["rw-generation"])


def _is_run(stored: Stored, run_id: str) -> bool:
    try:
        return runs.decode(stored.data).id == run_id
    except ValueError:
        return False

"""Counts what is kept in the streams, for the metrics page, and lets the oldest idempotency keys go where there are too many.

Invariant: it costs a bounded number of questions. Beyond `COUNTED` streams or keys the sizes are those of a sample, times the
number of all. Beyond `LISTED` they are what NATS itself counts: subjects of streams and of keys, its messages and its bytes.
"""

import asyncio
from collections import Counter
from random import sample

import msgspec

from ropewalk.adapters.backends.nats import jets
from ropewalk.adapters.backends.nats.plan import Marker
from ropewalk.adapters.backends.nats.shard import JetShard
from ropewalk.adapters.backends.nats.streams import NatsStreams, subjects
from ropewalk.ports import Clock

COUNTED = 100
LISTED = 20_000


async def count(streams: NatsStreams, shards: list[JetShard], clock: Clock, dedup_limit: int) -> dict[str, float]:
    """Raises `Unavailable`."""
    states = [found["state"] for shard in shards if (found := await jets.info(shard.link, shard.jet)) is not None]
    if sum(state.get("num_subjects", 0) for state in states) > LISTED:
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
    looked_at = names if len(names) <= COUNTED else sample(names, COUNTED)
    kept = [each for each in await asyncio.gather(*map(streams.kept, looked_at)) if each is not None]
    scale = len(names) / len(looked_at) if looked_at else 0.0
    keys = [(shard, subject) for shard in shards for subject in await _uids(shard)]
    if len(keys) > dedup_limit:
        of_shard = Counter(shard for shard, _ in keys)
        for shard, number in of_shard.items():
            await shard.purge(shard.names.uids, dedup_limit * number // len(keys))
        keys = [(shard, subject) for shard in shards for subject in await _uids(shard)]
    some = keys if len(keys) <= COUNTED else sample(keys, COUNTED)
    known = await asyncio.gather(*(_known(shard, subject, now) for shard, subject in some))
    return {
        "streams": round(len(kept) * scale),
        "history_messages": round(sum(messages for messages, _ in kept) * scale),
        "history_bytes": round(sum(size for _, size in kept) * scale),
        "dedup_keys": round(sum(known) * len(keys) / len(some)) if some else 0,
    }


async def _uids(shard: JetShard) -> list[str]:
    return await subjects(shard, shard.names.uids)


async def _known(shard: JetShard, subject: str, now: float) -> bool:
    stored = await shard.link.last(shard.jet, subject)
    return stored is not None and msgspec.msgpack.decode(stored.data, type=Marker).until > now

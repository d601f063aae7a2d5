"""What any node does about once a second: lets go of what has expired, and counts what is kept."""

import asyncio

from msgspec.msgpack import encode

from ropewalk.adapters.backends.redis.appends import Keeping
from ropewalk.adapters.backends.redis.sessions import lease_keys
from ropewalk.adapters.backends.redis.shard import Shard
from ropewalk.adapters.backends.redis.store import Store

SWEPT_AT_ONCE = 500
"""Streams and uids that one sweep of a shard may look at."""

COUNTED = (
    "streams",
    "history_messages",
    "history_bytes",
    "dedup_keys",
    "presence_members",
    "sessions_kept",
    "sessions_kept_bytes",
)


class RedisUpkeep:
    """`gauges` are those of the whole store at the last sweep."""

    def __init__(self, store: Store, keeping: Keeping) -> None:
        self._store = store
        limits = keeping.limits
        self._bounds = (round(limits.presence_ttl * 1000), limits.sessions_limit, limits.max_sessions_size)
        self._keeping = keeping
        self.gauges: dict[str, float] = dict.fromkeys(COUNTED, 0)

    async def sweep(self) -> None:
        counts = await asyncio.gather(*(self._sweep(shard) for shard in self._store.shards))
        self.gauges = {name: sum(count[place] for count in counts) for place, name in enumerate(COUNTED)}

    async def _sweep(self, shard: Shard) -> list[int]:
        key = shard.key
        while await self._sweep_streams(shard) == SWEPT_AT_ONCE:
            pass  # each call lets others of this process, and of Redis, go first
        await shard.ask("leases", lease_keys(shard), "sweep", SWEPT_AT_ONCE, *self._bounds)
        counts = await shard.ask("counts", [key("x"), key("u"), key("pi"), key("sd")])
        return [int(count) for count in counts]

    async def _sweep_streams(self, shard: Shard) -> int:
        """Trims or forgets the next streams that are due. Returns their number."""
        key, keeping = shard.key, self._keeping
        due = await shard.ask("due", [key("d"), key("u"), key("uo")], SWEPT_AT_ONCE, keeping.limits.dedup_limit)
        if due:
            streams = [name.decode() for name in due]
            keys = [key("x"), key("n"), key("d")]
            for stream in streams:
                keys += (key(f"m:{stream}"), key(f"h:{stream}"))
            await shard.ask("sweep", keys, encode([(stream, *keeping.of(stream)) for stream in streams]))
        return len(due)

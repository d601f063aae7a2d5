"""The shards of the store, available once the topology is known."""

import asyncio

from ropewalk.adapters.backends.redis.appends import Appender, RetentionLimits
from ropewalk.adapters.backends.redis.links import RedisLinks
from ropewalk.adapters.backends.redis.shard import ScriptContext, Shard
from ropewalk.adapters.backends.redis.topology import Topology
from ropewalk.core.ring import locate_shard
from ropewalk.model.errors import Unavailable


class Store:
    """`shards` raises `Unavailable` until the first connection to Redis."""

    def __init__(self, topology: Topology, context: ScriptContext, retention: RetentionLimits) -> None:
        self.topology = topology
        self.context = context
        self._retention = retention
        self._shards: list[Shard] = []
        self.appenders: list[Appender] = []
        self.found = asyncio.Event()

    @property
    def shards(self) -> list[Shard]:
        if not self._shards:
            raise Unavailable("not connected to Redis yet")
        return self._shards

    @property
    def home(self) -> Shard:
        """The shard of all data that is not sharded: sessions, leases, orders."""
        return self.shards[0]

    def shard_index(self, stream: str) -> int:
        return locate_shard(stream, len(self.shards))

    def shard_for(self, stream: str) -> Shard:
        shards = self.shards
        return shards[0] if len(shards) == 1 else shards[locate_shard(stream, len(shards))]

    def open(self) -> None:
        """Called once the topology is discovered."""
        self.context.sharded = self.topology.sharded
        for number in range(self.topology.shards):
            tag = str(number)
            shard = Shard(tag, RedisLinks(self.topology.connect(tag)), self.context)
            self._shards.append(shard)
            self.appenders.append(Appender(shard, self._retention))
        self.found.set()

    async def close(self) -> None:
        for appender in self.appenders:
            await appender.stop()
        for shard in self._shards:
            await shard.links.close()
        await self.topology.close()

    def trouble(self) -> str:
        troubles = [shard.trouble for shard in self._shards] + [appender.trouble for appender in self.appenders]
        return next(filter(None, troubles), "")

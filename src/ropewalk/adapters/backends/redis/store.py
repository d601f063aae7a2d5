"""The shards of the store, once it is known which there are."""

import asyncio

from ropewalk.adapters.backends.redis.appends import Appender, Keeping
from ropewalk.adapters.backends.redis.links import RedisLinks
from ropewalk.adapters.backends.redis.shard import Manner, Shard
from ropewalk.adapters.backends.redis.topology import Topology
from ropewalk.core.ring import locate_shard
from ropewalk.model.errors import Unavailable


class Store:
    """`shards` raises `Unavailable` until Redis has been reached for the first time."""

    def __init__(self, topology: Topology, manner: Manner, keeping: Keeping) -> None:
        self.topology = topology
        self.manner = manner
        self._keeping = keeping
        self._shards: list[Shard] = []
        self.appenders: list[Appender] = []
        self.found = asyncio.Event()

    @property
    def shards(self) -> list[Shard]:
        if not self._shards:
            raise Unavailable("Redis was not reached yet")
        return self._shards

    @property
    def home(self) -> Shard:
        """The shard of what is kept in one place: sessions, leases, orders."""
        return self.shards[0]

    def index_of(self, stream: str) -> int:
        return locate_shard(stream, len(self.shards))

    def shard_of(self, stream: str) -> Shard:
        shards = self.shards
        return shards[0] if len(shards) == 1 else shards[locate_shard(stream, len(shards))]

    def open(self) -> None:
        """The topology was discovered."""
        self.manner.sharded = self.topology.sharded
        for number in range(self.topology.shards):
            tag = str(number)
            shard = Shard(tag, RedisLinks(self.topology.connect(tag)), self.manner)
            self._shards.append(shard)
            self.appenders.append(Appender(shard, self._keeping))
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

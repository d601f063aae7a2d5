"""The servers of the shards: a single Redis, the master named by Sentinels, or the masters of a Redis Cluster."""

from dataclasses import replace
from typing import Any

from redis import exceptions
from redis.asyncio.connection import AbstractConnection
from redis.crc import key_slot

from ropewalk.adapters.backends.redis.links import LOST, Connect, RedisLink
from ropewalk.connections.redis import RedisAddress, close_redis, connection_to, open_redis
from ropewalk.model.errors import Unavailable

REPLY_SECONDS = 2.0

CLUSTER_SHARDS = 16

SHARDED_CHANNELS = 7
"""The first major version of Redis with SPUBLISH."""


class Topology:
    """Opens connections. Its attributes are valid once `discover` has returned."""

    def __init__(self, address: RedisAddress) -> None:
        urls = address.url.split(",")
        self._seeds = [open_redis(replace(address, url=url), REPLY_SECONDS, protocol=2) for url in urls]
        self.database: int = self._seeds[0].connection_pool.connection_kwargs.get("db") or 0
        self.cluster = False
        self.version = ""
        self.shards = 1

    @property
    def sharded(self) -> bool:
        """Whether to use SPUBLISH. In a cluster PUBLISH is sent to all servers."""
        return self.cluster and int(self.version.partition(".")[0]) >= SHARDED_CHANNELS

    async def discover(self, configuration: str) -> RedisLink:
        """Read version and topology. `configuration`: the key of the fixed number of shards. Returns the link it used. Raises
        `Unavailable`."""
        try:
            link = RedisLink(await self._any())
            try:
                await self._ask(link, configuration)
            except BaseException:
                await link.close()
                raise
        except (*LOST, exceptions.RedisError) as error:
            raise Unavailable(f"Redis cannot be reached: {error}") from None
        return link

    async def _ask(self, link: RedisLink, configuration: str) -> None:
        self.version = _field(await link.ask("INFO", "server"), b"redis_version")
        self.cluster = _field(await link.ask("INFO", "cluster"), b"cluster_enabled") == "1"
        if self.cluster:
            self.shards = await self._fixed_shards(configuration)

    async def close(self) -> None:
        """Close the clients used by `discover` and `connect`. They reopen on demand."""
        for seed in self._seeds:
            await close_redis(seed)

    def connect(self, tag: str) -> Connect:
        async def to_shard() -> AbstractConnection:
            return await (self._to_slot(key_slot(tag.encode())) if self.cluster else self._any())

        return to_shard

    async def _fixed_shards(self, configuration: str) -> int:
        """The number of shards set when the store was created. All nodes must use the same one."""
        link = RedisLink(await self._to_slot(key_slot(configuration.encode())))
        try:
            await link.ask("SET", configuration, CLUSTER_SHARDS, "NX")
            return int(await link.ask("GET", configuration))
        finally:
            await link.close()

    async def _any(self) -> AbstractConnection:
        """Connect to the only server, or to any reachable one of a cluster."""
        failure: Exception | None = None
        for seed in self._seeds:
            try:
                return await connection_to(seed)
            except (*LOST, exceptions.RedisError) as error:
                failure = error
        assert failure is not None
        raise failure

    async def _to_slot(self, slot: int) -> AbstractConnection:
        """Connect to the master of the slot, as known to the first server that answers."""
        link = RedisLink(await self._any())
        try:
            ranges = await link.ask("CLUSTER", "SLOTS")
        finally:
            await link.close()
        host, port = _find_master(ranges, slot)
        return await connection_to(self._seeds[0], host, port)


def _find_master(ranges: Any, slot: int) -> tuple[str, int]:
    for first, last, master, *_ in ranges:
        if first <= slot <= last and master[0]:
            return master[0].decode(), master[1]
    raise exceptions.ConnectionError(f"no server of the cluster has the slot {slot}")


def _field(text: bytes, name: bytes) -> str:
    for line in text.splitlines():
        key, _, value = line.partition(b":")
        if key == name:
            return value.decode()
    return ""

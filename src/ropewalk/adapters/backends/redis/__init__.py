"""The Redis backend: streams, sessions and presence that several nodes share.

Every change is one Lua script and therefore atomic. All nodes use the server's clock. Works on Redis
6.2 and later and on Valkey: a single server, a master named by Sentinels, or a Redis Cluster.
"""

import asyncio
import contextlib
import logging
import random
import time

from msgspec import Struct
from msgspec.msgpack import encode
from redis.exceptions import RedisError

from ropewalk.adapters.backends.redis.appends import RetentionLimits
from ropewalk.adapters.backends.redis.feed import RedisFeed
from ropewalk.adapters.backends.redis.links import RedisLink
from ropewalk.adapters.backends.redis.queue import RedisQueue
from ropewalk.adapters.backends.redis.sessions import RedisPresence, RedisSessions, lease_keys
from ropewalk.adapters.backends.redis.shard import ScriptContext, Shard
from ropewalk.adapters.backends.redis.store import Store
from ropewalk.adapters.backends.redis.streams import RedisStreams
from ropewalk.adapters.backends.redis.topology import Topology
from ropewalk.connections.redis import RedisAddress
from ropewalk.core.backoff import Backoff
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import Unavailable
from ropewalk.model.limits import STORE_LIMITS, StoreLimits
from ropewalk.ports import Clock, NodeName

SWEPT_AT_ONCE = 500
"""Maximum number of streams, uids and sessions per step of a sweep."""

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
    """Removes expired data; every node sweeps about once a second. `gauges` are those of the whole store at the last sweep."""

    def __init__(self, store: Store, retention: RetentionLimits) -> None:
        self._store = store
        limits = retention.limits
        self._bounds = (round(limits.presence_ttl * 1000), limits.sessions_limit, limits.max_sessions_size)
        self._retention = retention
        self.gauges: dict[str, float] = dict.fromkeys(COUNTED, 0)

    async def sweep(self) -> None:
        counts = await asyncio.gather(*(self._sweep(shard) for shard in self._store.shards))
        self.gauges = {name: sum(count[place] for count in counts) for place, name in enumerate(COUNTED)}

    async def _sweep(self, shard: Shard) -> list[int]:
        key = shard.key
        while await self._sweep_streams(shard) == SWEPT_AT_ONCE:
            pass  # in steps, so that other calls are not delayed
        while await shard.ask("leases", lease_keys(shard), "sweep", SWEPT_AT_ONCE, *self._bounds):
            pass
        counts = await shard.ask("counts", [key("x"), key("u"), key("pi"), key("sd")])
        return [int(count) for count in counts]

    async def _sweep_streams(self, shard: Shard) -> int:
        """Trims or forgets the next streams that are due. Returns their number."""
        key, retention = shard.key, self._retention
        due = await shard.ask("due", [key("d"), key("u"), key("uo")], SWEPT_AT_ONCE, retention.limits.dedup_limit)
        if due:
            streams = [name.decode() for name in due]
            keys = [key("x"), key("n"), key("d")]
            for stream in streams:
                keys += (key(f"m:{stream}"), key(f"h:{stream}"))
            await shard.ask("sweep", keys, encode([(stream, *retention.of(stream)) for stream in streams]))
        return len(due)


logger = logging.getLogger("ropewalk.redis")

BETWEEN_ATTEMPTS = Backoff(0.25, 5.0)


class RedisOptions(Struct, frozen=True):
    """How the store is laid out.

    Args:
        prefix: of all keys and channels; by default `rw:`, or `rw1:` in the database 1 and so on, because channels are the same
            in all databases.
        restart_epochs: begin new epochs at every start of the server.
        queue_limit: maximum number of rows in the record queue.
    """

    prefix: str = ""
    restart_epochs: bool = False
    queue_limit: int = 100_000


class RedisBackend:
    """Implements `ports.Backend` for one node.

    It starts even if Redis is down: until the first connection all calls raise `Unavailable`, and `health` returns the reason.

    Args:
        clock: for tests; by default the server's clock is used.
    """

    def __init__(
        self,
        rulebook: Rulebook,
        address: RedisAddress,
        node: NodeName,
        limits: StoreLimits = STORE_LIMITS,
        options: RedisOptions = RedisOptions(),  # noqa: B008 - frozen
        clock: Clock | None = None,
    ) -> None:
        topology = Topology(address)
        prefix = options.prefix or f"rw{topology.database or ''}:"
        self._node = node
        now = None if clock is None else lambda: round(clock() * 1000)
        context = ScriptContext(prefix, node.process, now, options.restart_epochs)
        retention = RetentionLimits(rulebook, limits, options.queue_limit)
        self.store = Store(topology, context, retention)
        self.streams = RedisStreams(self.store, retention)
        self.sessions = self.leases = RedisSessions(self.store, node.process, clock or time.time, limits)
        self.presence = RedisPresence(self.store, node.process, limits.max_members)
        self.record_queue = RedisQueue(self.store, node.lasting, options.queue_limit)
        self.feed = RedisFeed(self.store, node.process)
        self._upkeep = RedisUpkeep(self.store, retention)
        self._discovering: asyncio.Task[None] | None = None
        self._trouble = ""

    async def start(self) -> None:
        try:
            await self._discover()
        except Unavailable as error:
            self._trouble = str(error)
            logger.warning("waiting for Redis", extra={"reason": self._trouble})
            self._discovering = asyncio.get_running_loop().create_task(self._retry_discovery())

    async def stop(self) -> None:
        if self._discovering is not None:
            self._discovering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._discovering
        await self.feed.stop()
        await self.store.close()

    def health(self) -> str:
        return self._trouble or self.store.trouble()

    async def sweep(self) -> None:
        await self._upkeep.sweep()

    def gauges(self) -> dict[str, float]:
        return self._upkeep.gauges

    def reload_rules(self) -> None:
        """Nothing to do: every call sends its rules."""

    async def _discover(self) -> None:
        topology = self.store.topology
        link = await topology.discover(f"{self.store.context.prefix}conf")
        try:
            await _check_settings(link)
        except RedisError as error:  # the user may lack permission
            logger.info("cannot read the settings of Redis", extra={"reason": str(error)})
        finally:
            await link.close()
        self._trouble = ""
        self.store.open()
        logger.info(
            "redis %s",
            topology.version,
            extra={"cluster": topology.cluster, "shards": topology.shards, "node": self._node.process},
        )

    async def _retry_discovery(self) -> None:
        attempt = 0
        while True:
            await asyncio.sleep(BETWEEN_ATTEMPTS.delay(attempt, random.random))
            try:
                await self._discover()
            except Unavailable as error:
                attempt += 1
                self._trouble = str(error)
            else:
                logger.info("connected to Redis")
                return


async def _check_settings(link: RedisLink) -> None:
    """Warn of settings with which Redis loses acknowledged data."""
    memory, persistence = _fields(await link.ask("INFO", "memory")), _fields(await link.ask("INFO", "persistence"))
    policy = memory.get("maxmemory_policy", "noeviction")
    if memory.get("maxmemory", "0") != "0" and policy != "noeviction":
        logger.warning(
            "Redis drops keys when its memory is full, also streams and sessions; set maxmemory-policy noeviction",
            extra={"maxmemory_policy": policy},
        )
    if persistence.get("aof_enabled") != "1":
        logger.warning("Redis has no append-only file and loses streams, sessions and members in a restart; set appendonly yes")


def _fields(text: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.decode().splitlines())
    return {name: value for name, _, value in pairs}

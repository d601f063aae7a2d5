"""The Redis backend: streams, sessions and presence that several nodes share.

Every change is one Lua script, so that nothing is ever half done; the server's clock is the clock of all nodes. Works on Redis
6.2 and later and on Valkey: a single server, a master named by Sentinels, or a Redis Cluster.
"""

import asyncio
import contextlib
import logging
import random
import secrets

from ropewalk.adapters.backends.redis.appends import Keeping
from ropewalk.adapters.backends.redis.feed import RedisFeed
from ropewalk.adapters.backends.redis.links import Link
from ropewalk.adapters.backends.redis.shard import Manner
from ropewalk.adapters.backends.redis.store import Store
from ropewalk.adapters.backends.redis.streams import RedisStreams
from ropewalk.adapters.backends.redis.topology import Topology
from ropewalk.adapters.backends.redis.upkeep import Upkeep
from ropewalk.connections.redis import RedisAddress
from ropewalk.core.backoff import Backoff
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import Unavailable
from ropewalk.ports import Clock

logger = logging.getLogger("ropewalk.redis")

BETWEEN_ATTEMPTS = Backoff(0.25, 5.0)


class RedisBackend:
    """Implements `ports.Backend` for one node.

    It starts while Redis is down: until that is reached for the first time, all calls raise `Unavailable`, and `health` says so.
    `clock`: the time of tests; without it the server's counts. `prefix`: how all keys begin.
    """

    def __init__(
        self,
        rulebook: Rulebook,
        address: RedisAddress,
        node: str = "",
        dedup_ttl: float = 300.0,
        dedup_limit: int = 100_000,
        presence_ttl: float = 15.0,
        max_members: int = 10_000,
        max_session_size: int = 128 * 1024,
        restart_epochs: bool = False,
        prefix: str = "rw:",
        clock: Clock | None = None,
    ) -> None:
        manner = Manner(prefix, None if clock is None else lambda: round(clock() * 1000), restart_epochs)
        keeping = Keeping(rulebook, dedup_ttl, dedup_limit)
        node = node or secrets.token_urlsafe(9)
        self.store = Store(Topology(address, prefix), manner, keeping)
        self.streams = RedisStreams(self.store, keeping)
        self.feed = RedisFeed(self.store, node)
        self._upkeep = Upkeep(self.store, keeping)
        self._finding: asyncio.Task[None] | None = None
        self._trouble = ""

    async def start(self) -> None:
        try:
            await self._find()
        except Unavailable as error:
            self._trouble = str(error)
            logger.warning("waiting for Redis", extra={"reason": self._trouble})
            self._finding = asyncio.get_running_loop().create_task(self._keep_finding())

    async def stop(self) -> None:
        if self._finding is not None:
            self._finding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._finding
        await self.store.close()

    def health(self) -> str:
        return self._trouble or self.store.trouble()

    async def sweep(self) -> None:
        await self._upkeep.sweep()

    def gauges(self) -> dict[str, float]:
        return self._upkeep.gauges

    leases = None

    def rules_changed(self) -> None:
        """Every call says which rules hold."""

    async def _find(self) -> None:
        link = await self.store.topology.discover()
        try:
            await _look_at_settings(link)
        finally:
            await link.close()
        self._trouble = ""
        self.store.open()

    async def _keep_finding(self) -> None:
        attempt = 0
        while True:
            await asyncio.sleep(BETWEEN_ATTEMPTS.delay(attempt, random.random))
            try:
                await self._find()
            except Unavailable as error:
                attempt += 1
                self._trouble = str(error)
            else:
                logger.info("Redis is there")
                return


async def _look_at_settings(link: Link) -> None:
    """Warn of what loses what was acknowledged."""

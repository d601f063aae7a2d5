"""The broadcaster `redis`: publications on a Redis channel, which every node receives. `redisx` is the reliable one."""

import logging
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from ropewalk.adapters.broadcasters.intake import FanOutBroadcaster
from ropewalk.connections.redis import CLOSED, RedisAddress, close_redis, open_redis
from ropewalk.core.stats import Stats
from ropewalk.ports import Publisher
from ropewalk.protocol.publications import PublicationLimits

logger = logging.getLogger("ropewalk.broadcast")

ANSWER_SECONDS = 5.0
QUIET_SECONDS = 3.0
"""Without a message for so long, the server is pinged. Without a reply for as long again, the connection counts as lost."""


class RedisChannelBroadcaster(FanOutBroadcaster):
    name = "redis"
    errors = (RedisError, CLOSED)

    def __init__(
        self, publisher: Publisher, limits: PublicationLimits, stats: Stats, address: RedisAddress, *, channel: str
    ) -> None:
        super().__init__(publisher, limits, stats)
        self._channel = channel
        self._servers = address.each()  # each server of a Redis Cluster forwards what is published at another

    async def start(self) -> None:
        logger.info("broadcaster redis", extra={"channel": self._channel})
        await super().start()

    async def _listen(self) -> None:
        server = self._servers[0]
        self._servers = [*self._servers[1:], server]  # the next attempt takes the next one
        redis = open_redis(server, ANSWER_SECONDS, protocol=2, health_check_interval=0)
        try:
            await self._subscribe(redis)
        finally:
            await close_redis(redis)

    async def _subscribe(self, redis: Redis) -> None:
        async with redis.pubsub() as pubsub:
            await pubsub.subscribe(self._channel)
            pinged = False
            while True:
                message: Any = await pubsub.get_message(timeout=QUIET_SECONDS)
                if message is None and pinged:
                    raise ConnectionError("Redis does not respond")
                pinged = message is None
                if message is None:
                    await pubsub.ping()
                elif message["type"] == "message":
                    await self._receive(message["data"])
                elif message["type"] == "subscribe":
                    self._retrying.connected()

"""The broadcaster `redis`: publications on a Redis channel, which every node hears.

What is sent while the connection is down is lost; applications that want more use `redisx`.
"""

import logging
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from ropewalk.adapters.broadcasters.fan_out import FanOut
from ropewalk.adapters.broadcasters.retrying import Retrying
from ropewalk.connections.redis import CLOSED, RedisAddress, close_redis, open_redis
from ropewalk.core.stats import Stats
from ropewalk.model.report import Gauges
from ropewalk.ports import Publisher
from ropewalk.protocol.publications import PublicationLimits

logger = logging.getLogger("ropewalk.broadcast")

ANSWER_SECONDS = 5.0
QUIET_SECONDS = 3.0
"""After so much silence the server is asked whether it is there; after as much again the connection counts as lost."""


class RedisChannelBroadcaster:
    """Implements `ports.Broadcaster`."""

    def __init__(
        self, publisher: Publisher, limits: PublicationLimits, stats: Stats, address: RedisAddress, *, channel: str
    ) -> None:
        self._fan_out = FanOut("redis", publisher, limits, stats)
        self._channel = channel
        self._servers = address.each()  # any one of a Redis Cluster passes on what is published at another
        self._retrying = Retrying("redis", self._listen, (RedisError, CLOSED))

    async def start(self) -> None:
        logger.info("broadcaster redis", extra={"channel": self._channel})
        self._retrying.start()

    async def stop(self) -> None:
        await self._retrying.stop(0)

    def health(self) -> str:
        return self._retrying.health()

    def gauges(self) -> Gauges:
        return {}

    async def _listen(self) -> None:
        server = self._servers[0]
        self._servers = [*self._servers[1:], server]  # when this one fails, the next
        redis = open_redis(server, ANSWER_SECONDS, protocol=2, health_check_interval=0)
        try:
            await self._listen_to(redis)
        finally:
            await close_redis(redis)

    async def _listen_to(self, redis: Redis) -> None:
        async with redis.pubsub() as pubsub:
            await pubsub.subscribe(self._channel)
            asked = False
            while True:
                message: Any = await pubsub.get_message(timeout=QUIET_SECONDS)
                if message is None and asked:
                    raise ConnectionError("Redis does not answer")
                asked = message is None
                if message is None:
                    await pubsub.ping()
                elif message["type"] == "message":
                    await self._fan_out.hear(message["data"])
                elif message["type"] == "subscribe":
                    self._retrying.works()

"""The broadcaster `nats`: publications on a NATS subject, which every node hears.

What is sent while the connection is down is lost.
"""

import logging
import time

from nats.aio.msg import Msg
from nats.errors import Error, SlowConsumerError

from ropewalk.adapters.broadcasters.fan_out import FanOut
from ropewalk.adapters.broadcasters.intake import BETWEEN_WARNINGS
from ropewalk.adapters.broadcasters.retrying import Retrying
from ropewalk.connections.nats import NatsAddress, open_nats
from ropewalk.core.stats import Stats
from ropewalk.model.report import Gauges
from ropewalk.ports import Publisher
from ropewalk.protocol.publications import PublicationLimits

logger = logging.getLogger("ropewalk.broadcast")

WAITING_MESSAGES = 100_000
WAITING_BYTES = 64 << 20
"""Of messages that came and were not delivered yet. What comes above that is lost, and logged."""

LOOK_SECONDS = 1.0


class NatsBroadcaster:
    """Implements `ports.Broadcaster`."""

    def __init__(
        self, publisher: Publisher, limits: PublicationLimits, stats: Stats, address: NatsAddress, *, subject: str
    ) -> None:
        self._fan_out = FanOut("nats", publisher, limits, stats)
        self._address = address
        self._subject = subject
        self._next_warning = 0.0
        self._retrying = Retrying("nats", self._listen, (Error,))

    async def start(self) -> None:
        logger.info("broadcaster nats", extra={"subject": self._subject})
        self._retrying.start()

    async def stop(self) -> None:
        await self._retrying.stop(0)

    def health(self) -> str:
        return self._retrying.health()

    def gauges(self) -> Gauges:
        return {}

    async def _listen(self) -> None:
        client = await open_nats(self._address, "ropewalk broadcaster", self._connected, self._disconnected, self._failed)
        try:
            await client.subscribe(
                self._subject,
                cb=self._hear,
                pending_msgs_limit=WAITING_MESSAGES,
                pending_bytes_limit=WAITING_BYTES,
            )
            await client.flush()
            self._retrying.works()
            while not client.is_closed:  # it comes back by itself, unless the server sent it away for good
                await self._retrying.pause(LOOK_SECONDS)
            raise ConnectionError("the connection was closed")
        finally:
            await client.close()

    async def _hear(self, message: Msg) -> None:
        await self._fan_out.hear(message.data)

    async def _connected(self) -> None:
        self._retrying.works()

    async def _disconnected(self) -> None:
        if not self._retrying.stopping:
            self._retrying.fails(ConnectionError("the connection is lost"))

    def _overrun(self) -> None:
        """Called for each message that is lost, which are many."""
        now = time.monotonic()
        if now >= self._next_warning:
            self._next_warning = now + BETWEEN_WARNINGS
            logger.warning("broadcasts of nats are lost: they come faster than they can be delivered")

    async def _failed(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            self._overrun()
        elif not self._retrying.stopping and self._retrying.problem:  # while there is no connection, why there is none
            self._retrying.fails(error)

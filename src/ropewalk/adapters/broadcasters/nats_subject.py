"""The broadcaster `nats`: publications on a NATS subject, which every node receives."""

import logging
import time

from nats.aio.msg import Msg
from nats.errors import Error, SlowConsumerError

from ropewalk.adapters.broadcasters.intake import WARNING_INTERVAL_SECONDS, FanOutBroadcaster
from ropewalk.connections.nats import NatsAddress, open_nats
from ropewalk.core.stats import Stats
from ropewalk.ports import Publisher
from ropewalk.protocol.publications import PublicationLimits

logger = logging.getLogger("ropewalk.broadcast")

MAX_PENDING_MESSAGES = 100_000
MAX_PENDING_BYTES = 64 << 20
"""Received and not delivered yet. Messages above these limits are lost, which is logged."""

CHECK_SECONDS = 1.0


class NatsBroadcaster(FanOutBroadcaster):
    name = "nats"
    errors = (Error,)

    def __init__(
        self, publisher: Publisher, limits: PublicationLimits, stats: Stats, address: NatsAddress, *, subject: str
    ) -> None:
        super().__init__(publisher, limits, stats)
        self._address = address
        self._subject = subject
        self._next_warning = 0.0

    async def start(self) -> None:
        logger.info("broadcaster nats", extra={"subject": self._subject})
        await super().start()

    async def _listen(self) -> None:
        client = await open_nats(self._address, "ropewalk broadcaster", self._connected, self._disconnected, self._failed)
        try:
            await client.subscribe(
                self._subject,
                cb=self._received,
                pending_msgs_limit=MAX_PENDING_MESSAGES,
                pending_bytes_limit=MAX_PENDING_BYTES,
            )
            await client.flush()
            self._retrying.connected()
            while not client.is_closed:  # the client reconnects itself, unless the server has closed it for good
                await self._retrying.pause(CHECK_SECONDS)
            raise ConnectionError("the connection was closed")
        finally:
            await client.close()

    async def _received(self, message: Msg) -> None:
        await self._receive(message.data)

    async def _connected(self) -> None:
        self._retrying.connected()

    async def _disconnected(self) -> None:
        if not self._retrying.stopping:
            self._retrying.failed(ConnectionError("the connection is lost"))

    def _overrun(self) -> None:
        """Called for each lost message."""
        now = time.monotonic()
        if now >= self._next_warning:
            self._next_warning = now + WARNING_INTERVAL_SECONDS
            logger.warning("broadcasts of nats are lost: they arrive faster than they can be delivered")

    async def _failed(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            self._overrun()
        elif not self._retrying.stopping and self._retrying.problem:  # the reason why there is no connection
            self._retrying.failed(error)

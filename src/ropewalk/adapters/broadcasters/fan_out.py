"""The base of broadcasters whose publications reach every node: each node delivers them to its own sessions.

Publications sent while the connection is down are lost.
"""

import logging
from abc import ABC, abstractmethod

from ropewalk.adapters.broadcasters.intake import Intake
from ropewalk.adapters.broadcasters.retrying import Retrying
from ropewalk.core.stats import Stats
from ropewalk.model.errors import RopewalkError
from ropewalk.model.messages import RemoteDisconnect
from ropewalk.model.report import Gauges
from ropewalk.ports import Publisher
from ropewalk.protocol.publications import PublicationLimits

logger = logging.getLogger("ropewalk.broadcast")


class FanOutBroadcaster(ABC):
    """Implements `ports.Broadcaster`. `publisher` delivers to the sessions of this node only."""

    name: str
    errors: tuple[type[Exception], ...]
    """What `_listen` raises when the server cannot be reached."""

    def __init__(self, publisher: Publisher, limits: PublicationLimits, stats: Stats) -> None:
        self._publisher = publisher
        self._intake = Intake(self.name, limits, stats)
        self._retrying = Retrying(self.name, self._listen, self.errors)

    async def start(self) -> None:
        self._retrying.start()

    async def stop(self) -> None:
        await self._retrying.stop(0)

    def health(self) -> str:
        return self._retrying.health()

    def gauges(self) -> Gauges:
        return {}

    @abstractmethod
    async def _listen(self) -> None:
        """Connect, report it to `_retrying`, and pass payloads to `_receive` until the connection is lost."""

    async def _receive(self, payload: bytes) -> None:
        """A payload that fails does not affect the others."""
        try:
            match await self._intake.read(payload):
                case RemoteDisconnect() as order:
                    await self._publisher.disconnect(order)
                case list() as publications:
                    await self._publisher.publish(publications)
        except RopewalkError as error:
            logger.warning("a broadcast failed", extra={"broadcaster": self.name, "reason": str(error)})

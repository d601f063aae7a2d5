"""Payloads that every node hears, to the sessions of this node. One that fails costs the others nothing."""

import logging

from ropewalk.adapters.broadcasters.intake import Intake
from ropewalk.core.stats import Stats
from ropewalk.model.errors import RopewalkError
from ropewalk.model.messages import RemoteDisconnect
from ropewalk.ports import Publisher
from ropewalk.protocol.publications import PublicationLimits

logger = logging.getLogger("ropewalk.broadcast")


class FanOut:
    """`publisher` is one that delivers here only: every node does so for itself."""

    def __init__(self, broadcaster: str, publisher: Publisher, limits: PublicationLimits, stats: Stats) -> None:
        self._broadcaster = broadcaster
        self._publisher = publisher
        self._intake = Intake(broadcaster, limits, stats)

    async def hear(self, payload: bytes) -> None:
        try:
            match await self._intake.read(payload):
                case RemoteDisconnect() as order:
                    await self._publisher.disconnect(order)
                case list() as publications:
                    await self._publisher.publish(publications)
        except RopewalkError as error:
            logger.warning("a broadcast failed", extra={"broadcaster": self._broadcaster, "reason": str(error)})

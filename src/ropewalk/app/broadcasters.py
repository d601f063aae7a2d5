"""Builds the configured broadcasters, except publishing over HTTP, and runs them as one."""

import asyncio
import logging
from collections.abc import Sequence

from ropewalk.app.backends import load_node_id, nats_address, redis_address
from ropewalk.app.registry import BROADCASTERS, resolve
from ropewalk.app.settings import Settings
from ropewalk.core.stats import Stats
from ropewalk.engine.node import Node
from ropewalk.model.report import Gauges
from ropewalk.ports import Broadcaster
from ropewalk.protocol.publications import PublicationLimits

logger = logging.getLogger("ropewalk.broadcast")


class Broadcasters:
    """The broadcasters of one node. They start after the node and stop before it."""

    def __init__(self, running: Sequence[Broadcaster]) -> None:
        self._running = running

    async def start(self) -> None:
        for broadcaster in self._running:
            await broadcaster.start()

    async def stop(self) -> None:
        ends = await asyncio.gather(*(broadcaster.stop() for broadcaster in self._running), return_exceptions=True)
        for error in ends:
            if isinstance(error, Exception):  # the rest of the server must still stop
                logger.error("a broadcaster failed to stop", exc_info=error)

    def health(self) -> list[str]:
        return [problem for broadcaster in self._running if (problem := broadcaster.health())]

    def gauges(self) -> Gauges:
        gauges = {name: size for broadcaster in self._running for name, size in broadcaster.gauges().items()}
        return {"broadcasters_down": len(self.health()), **gauges} if self._running else {}


def build_broadcasters(settings: Settings, node: Node, stats: Stats, limits: PublicationLimits) -> Broadcasters:
    """Raises UserMistake if a library is missing."""
    chosen, broadcast = settings.broadcast.broadcast_adapter, settings.broadcast
    running: list[Broadcaster] = []
    if "redisx" in chosen:
        streams = resolve(BROADCASTERS, "redisx", extra="redis")
        group = resolve(BROADCASTERS, "redisx group", extra="redis")(
            broadcast.redisx_stream,
            broadcast.redisx_group,
            load_node_id(settings),
            broadcast.redisx_read_block_milliseconds,
        )
        running.append(streams(node.broker, limits, stats, redis_address(settings), group))
    if "redis" in chosen:
        channel = resolve(BROADCASTERS, "redis")
        local = node.local_publisher
        running.append(channel(local, limits, stats, redis_address(settings), channel=broadcast.redis_channel))
    if "nats" in chosen:
        subject = resolve(BROADCASTERS, "nats")
        running.append(subject(node.local_publisher, limits, stats, nats_address(settings), subject=broadcast.nats_channel))
    return Broadcasters(running)

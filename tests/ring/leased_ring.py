"""Servers that find each other by leases, as nodes of one ring."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import msgspec

from ropewalk.model.ring import RingReport
from tests.ring.ring import Ring
from tests.server import RunningServer
from tests.services import NatsServer, RedisServer, nats_server, redis_server

LEASED_WITHIN = 90.0
"""Seconds: leases hold for ten, and a busy machine is not a bug."""


class LeasedRing(Ring):
    """`store`: where the leases are."""

    def __init__(self, home: Path, store: RedisServer | NatsServer, journals: str, flags: tuple[str, ...]) -> None:
        super().__init__(home, "", False, {}, flags)
        self.store = store
        self._journals = journals

    def discovery(self, name: str, seeds: str) -> list[str]:
        where = ("redis", "--redis_url") if isinstance(self.store, RedisServer) else ("nats", "--nats_servers")
        return ["--ring", where[0], where[1], self.store.url]

    async def are_one(self, names: str) -> None:
        """All of the nodes know the same members, and each holds its share."""
        deadline = time.monotonic() + LEASED_WITHIN
        for node in (self.nodes[name] for name in names):
            while not _is_settled(report := await self.report(node), names):
                assert time.monotonic() < deadline, (report, node.log())
                await asyncio.sleep(0.05)

    async def report(self, node: RunningServer) -> RingReport:
        async with aiohttp.ClientSession() as http, http.get(f"{node.url}/api/ring") as response:
            return msgspec.json.decode(await response.read(), type=RingReport)

    def keeps_journal(self, name: str) -> bool:
        return name in self._journals


def _is_settled(report: RingReport, names: str) -> bool:
    there = "".join(node.name for node in report.nodes if node.alive and node.owns == node.holds)
    return there == names and not report.moving and not report.unavailable


@contextlib.contextmanager
def leased_ring(names: str = "abc", *flags: str, journals: str = "", store: str = "redis") -> Iterator[LeasedRing]:
    """`journals`: the nodes that have one."""
    with tempfile.TemporaryDirectory() as home, redis_server() if store == "redis" else nats_server() as there:
        ring = LeasedRing(Path(home), there, journals, flags)
        try:
            ring.start_all(names)
            yield ring
        finally:
            ring.end()

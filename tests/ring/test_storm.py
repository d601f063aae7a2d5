"""The reconnect storm on a ring: each connection and each request uses any node, while one node joins and one leaves."""

import asyncio
import random
import time
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from tests.faults.storm import (
    CLIENTS,
    FLAGS,
    AnyClient,
    StormClient,
    StormPublisher,
    StormRecord,
    all_counted,
    check_counts,
    new_seed,
    storm,
)
from tests.faults.storm_broky import BrokyStormClient, BrokyStormPublisher
from tests.faults.storm_sse import SseStormClient
from tests.metrics import metrics
from tests.ring.ring import SECONDS, Ring, running_ring
from tests.server import Address

COUNT = CLIENTS * 2 // 5
KINDS: list[AnyClient] = [BrokyStormClient, BrokyStormClient, StormClient, SseStormClient]


class AnyNode(Address):
    """A random node for each connection and request."""

    def __init__(self, ring: Ring, chance: random.Random) -> None:
        self._ring = ring
        self._chance = chance

    @property
    def url(self) -> str:
        return self._chance.choice(list(self._ring.nodes.values())).url


class RingPublisher(StormPublisher):
    """All its messages have a uid. It sends those again that a node did not take, because their shard was moved so slowly."""

    share_of_uids = 1.0

    async def _send(self, http: aiohttp.ClientSession, batch: list[dict[str, str]]) -> list[dict[str, Any]]:
        body = [{"uid": uuid4().hex, **each} for each in batch]
        while True:
            async with http.post(f"{self._server.url}/_broadcast", json=body) as response:
                if response.status == 503:
                    self._record.counts["repeats"] += len(body)
                    continue
                assert response.status == 201, await response.text()
                publications: list[dict[str, Any]] = (await response.json())["publications"]
                return publications


@pytest.mark.parametrize("journal", [False, True])
async def test_clients_of_all_nodes_receive_the_same_messages_while_nodes_join_and_leave(journal: bool) -> None:
    with running_ring("abc", *FLAGS, journal=journal) as ring:
        await ring.healthy()
        chance = random.Random(new_seed())
        change = asyncio.create_task(_join_and_leave(ring))
        any_node = AnyNode(ring, chance)
        record = await storm(any_node, chance.randrange(10**9), COUNT, KINDS, [BrokyStormPublisher, RingPublisher])
        await change
        check_counts(record, await _counted(ring, record), COUNT)
        for name, node in ring.nodes.items():
            assert "Traceback" not in node.log(), f"{name}: {node.log()}"


async def _join_and_leave(ring: Ring) -> None:
    """The node that leaves is not stopped: it holds no shards, and serves its clients from the other nodes."""
    await asyncio.to_thread(ring.join, "d")
    await ring.settled()
    await ring.change("a", {"remove": "b"})
    await ring.settled()


async def _counted(ring: Ring, record: StormRecord) -> dict[str, float]:
    """The sums of the metrics of all nodes, when they are complete."""
    deadline = time.monotonic() + SECONDS
    while True:
        found: dict[str, float] = {}
        for node in ring.nodes.values():
            for name, value in (await metrics(node)).items():
                found[name] = found.get(name, 0) + value
        if all_counted(found, record):
            return found
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.05)

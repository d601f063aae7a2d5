"""The storm on a ring: every connection and every request is at any node, while one joins and one leaves."""

import asyncio
import random
import time

import pytest

from tests.faults.storm import AnyClient, Sea, StormClient, StormPublisher, storm
from tests.faults.storm_broky import BrokyStormClient, BrokyStormPublisher
from tests.faults.storm_sse import SseStormClient
from tests.faults.test_storm import CHANNELS, FEWER, FLAGS, all_told, judge, seed
from tests.metrics import metrics
from tests.ring.ring import WITHIN, Ring, running_ring
from tests.server import Address

CLIENTS: list[AnyClient] = [BrokyStormClient, BrokyStormClient, StormClient, SseStormClient]


class AnyNode(Address):
    """Another one each time that somebody asks."""

    def __init__(self, ring: Ring, chance: random.Random) -> None:
        self._ring = ring
        self._chance = chance

    @property
    def url(self) -> str:
        return self._chance.choice(list(self._ring.nodes.values())).url


@pytest.mark.parametrize("journal", [False, True])
async def test_clients_at_all_nodes_have_the_same_messages_while_nodes_come_and_go(journal: bool) -> None:
    with running_ring("abc", *FLAGS, *CHANNELS, journal=journal) as ring:
        await ring.healthy()
        chance = random.Random(seed())
        changing = asyncio.create_task(_one_comes_and_one_goes(ring))
        anywhere = AnyNode(ring, chance)
        sea = await storm(anywhere, chance.randrange(10**9), FEWER, CLIENTS, [BrokyStormPublisher, StormPublisher])
        await changing
        judge(sea, await _counted(ring, sea), FEWER)
        for name, node in ring.nodes.items():
            assert "Traceback" not in node.log(), f"{name}: {node.log()}"


async def _one_comes_and_one_goes(ring: Ring) -> None:
    """The one that goes is not stopped: it has nothing any more, and serves its clients from what the others have."""
    await asyncio.to_thread(ring.join, "d")
    await ring.settled()
    await ring.change("a", {"remove": "b"})
    await ring.settled()


async def _counted(ring: Ring, sea: Sea) -> dict[str, float]:
    """What all nodes counted, as soon as that is all."""
    deadline = time.monotonic() + WITHIN
    while True:
        found: dict[str, float] = {}
        for node in ring.nodes.values():
            for name, value in (await metrics(node)).items():
                found[name] = found.get(name, 0) + value
        if all_told(found, sea):
            return found
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.05)

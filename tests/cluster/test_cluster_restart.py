"""A node that crashes and is back before anybody took it for dead, under the same name: what it held is not forgotten."""

import asyncio
import time

import pytest

from tests.cable import cable
from tests.cluster.cluster import members_at
from tests.cluster.cluster_faults import EngineMaker, nats_engine, redis_engine, running_cluster

SECONDS = 60.0


@pytest.mark.parametrize("engine", [redis_engine, nats_engine])
async def test_the_members_of_a_node_that_crashed_and_came_back_at_once_leave(engine: EngineMaker) -> None:
    async with engine() as chosen, running_cluster(chosen, size=2) as cluster:
        crashing, other = cluster.nodes
        async with cable(crashing) as client, cable(other) as watcher:
            await watcher.subscribe("room")
            await client.subscribe("room", presence={"id": "bo"})
            await watcher.until("presence", lambda frame: frame["message"].get("id") == "bo")
            crashing.process.kill()
            await crashing.start()
            deadline = time.monotonic() + SECONDS
            while await members_at(other, "room"):
                assert time.monotonic() < deadline, "the member is still there"
                await asyncio.sleep(0.1)
            assert await members_at(crashing, "room") == set()

"""Nodes of a ring that find each other by leases: they come, die and come back."""

import pytest

from tests.scenarios.leased_ring import leased_ring
from tests.scenarios.ring import streams_of_all_shards
from tests.server import publish


@pytest.mark.parametrize("store", ["redis", "nats"])
async def test_nodes_that_are_started_at_once_are_one_ring_and_a_fourth_joins(store: str) -> None:
    with leased_ring("abc", store=store) as ring:
        await ring.are_one("abc")
        streams = streams_of_all_shards()
        before = {stream: await publish(ring.nodes["a"], stream, "1") for stream in streams}
        ring.start_all("d")
        await ring.are_one("abcd")
        for stream in streams:
            after = await publish(ring.nodes["d"], stream, "2")
            assert (after["epoch"], after["offset"]) == (before[stream]["epoch"], 2)
        assert sum("founding a ring" in node.log() for node in ring.nodes.values()) == 1

"""Three nodes on one engine under faults: what was acknowledged is kept, delivered once, in order, and the same everywhere."""

import os
import secrets

import pytest

from tests.cluster.faults import (
    EngineMaker,
    forgetful_redis_engine,
    nats_engine,
    nats_r3_engine,
    redis_engine,
    redis_pair_engine,
    running_cluster,
)
from tests.cluster.scenario import Size, figures, suffer

SECONDS = float(os.environ.get("CLUSTER_SECONDS") or 0)
CLIENTS = int(os.environ.get("CLUSTER_CLIENTS") or 30)
SIZE = Size(CLIENTS, publishers=6, pause=0.2 if CLIENTS < 100 else 0.5, seconds=SECONDS)


async def survived(engine: EngineMaker) -> None:
    seed = int(os.environ.get("CLUSTER_SEED") or secrets.randbelow(10**9))
    async with engine() as chosen, running_cluster(chosen) as cluster:
        print(f"\ncluster on {chosen.name} with CLUSTER_SEED={seed}")
        world, found = await suffer(cluster, SIZE, seed)
        print(f"  {figures(world, SIZE)}")
        logs = "".join(node.logs() for node in cluster.nodes)
    assert found == [], f"with CLUSTER_SEED={seed}"
    assert "Traceback" not in logs, logs
    assert world.counts["resumed on another node"] > CLIENTS


@pytest.mark.parametrize("engine", [redis_engine, nats_engine, nats_r3_engine])
async def test_nothing_acknowledged_is_lost_repeated_or_out_of_order_whatever_fails(engine: EngineMaker) -> None:
    await survived(engine)


@pytest.mark.parametrize("engine", [forgetful_redis_engine, redis_pair_engine])
async def test_an_engine_that_loses_what_it_acknowledged_changes_the_epoch_and_nothing_is_lost_in_silence(
    engine: EngineMaker,
) -> None:
    await survived(engine)

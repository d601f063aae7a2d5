"""Three nodes on one engine under faults: acknowledged messages are kept, delivered once, in order, and the same on all nodes.

`make chaos MODE=cluster` runs it for minutes: CLUSTER_SECONDS, CLUSTER_CLIENTS. CLUSTER_SEED repeats the faults of a run.
"""

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
from tests.cluster.scenario import Size, figures, run_scenario

SECONDS = float(os.environ.get("CLUSTER_SECONDS") or 0)
CLIENTS = int(os.environ.get("CLUSTER_CLIENTS") or 30)
SIZE = Size(CLIENTS, publishers=6, pause=0.2 if CLIENTS < 100 else 0.5, seconds=SECONDS)

pytestmark = pytest.mark.timeout(600 + 2 * SECONDS)


async def find_no_anomaly(engine: EngineMaker) -> None:
    seed = int(os.environ.get("CLUSTER_SEED") or secrets.randbelow(10**9))
    async with engine() as chosen, running_cluster(chosen) as cluster:
        print(f"\n{len(cluster.nodes)} nodes on {chosen.name} with CLUSTER_SEED={seed}")
        world, found = await run_scenario(cluster, SIZE, seed)
        print(f"  {figures(world, SIZE)}")
        logs = "".join(node.logs() for node in cluster.nodes)
    assert not found, "\n".join([f"with CLUSTER_SEED={seed}", *(f"{kind.value}: {text}" for kind, text in found)])
    assert "Traceback" not in logs, logs
    assert world.counts["resumed on another node"] > CLIENTS


@pytest.mark.parametrize("engine", [redis_engine, nats_engine, nats_r3_engine])
async def test_nothing_acknowledged_is_lost_repeated_or_reordered_during_faults(engine: EngineMaker) -> None:
    await find_no_anomaly(engine)


@pytest.mark.parametrize("engine", [forgetful_redis_engine, redis_pair_engine])
async def test_engine_that_loses_data_changes_the_epoch_and_every_gap_is_reported(engine: EngineMaker) -> None:
    await find_no_anomaly(engine)

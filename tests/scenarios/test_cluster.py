"""Three nodes on one engine under faults: what was acknowledged is kept, delivered once, in order, and the same everywhere."""

import os
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.scenarios.cluster import Size, figures, suffer
from tests.scenarios.cluster_faults import Engine, nats_engine, nats_r3_engine, redis_engine, running_cluster

SECONDS = float(os.environ.get("CLUSTER_SECONDS") or 0)
CLIENTS = int(os.environ.get("CLUSTER_CLIENTS") or 30)
SIZE = Size(CLIENTS, publishers=6, pause=0.2 if CLIENTS < 100 else 0.5, seconds=SECONDS)


@pytest.mark.parametrize("engine", [redis_engine, nats_engine, nats_r3_engine])
async def test_nothing_acknowledged_is_lost_repeated_or_out_of_order_whatever_fails(
    engine: Callable[[], AbstractContextManager[Engine]], capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("CLUSTER_SEED") or secrets.randbelow(10**9))
    with engine() as chosen:
        async with running_cluster(chosen) as cluster:
            with capsys.disabled():
                print(f"\ncluster on {chosen.name} with CLUSTER_SEED={seed}")
            world, found = await suffer(cluster, SIZE, seed)
            with capsys.disabled():
                print(f"  {figures(world, SIZE)}")
            logs = "".join(node.logs() for node in cluster.nodes)
    assert found == []
    assert "Traceback" not in logs, logs
    assert world.counts["resumed on another node"] > CLIENTS

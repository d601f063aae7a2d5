"""One node of four workers under faults: acknowledged messages are kept and delivered once, in the same order everywhere."""

import os
import secrets
from pathlib import Path

from tests.cluster.scenario import Size, figures, run_scenario
from tests.process_tree import workers
from tests.workers.worker_faults import STORE_FAULTS, WORKER_FAULTS, WORKERS, WorkersNode, running_workers

SECONDS = float(os.environ.get("WORKERS_SECONDS") or 0)
CLIENTS = int(os.environ.get("WORKERS_CLIENTS") or 60)
SIZE = Size(CLIENTS, publishers=6, pause=0.2 if CLIENTS < 100 else 0.5, seconds=SECONDS)


async def assert_survives(node: WorkersNode) -> None:
    seed = int(os.environ.get("WORKERS_SEED") or secrets.randbelow(10**9))
    print(f"\n{WORKERS} workers with WORKERS_SEED={seed}")
    world, found = await run_scenario(node, SIZE, seed)
    print(f"  {figures(world, SIZE)}")
    assert found == [], f"with WORKERS_SEED={seed}\n{node.server.log()}"
    assert len(workers(node.server)) == WORKERS
    assert world.counts["resumed on the same node"] > CLIENTS
    assert node.server.stop() == 0


async def test_killed_paused_and_replaced_workers_lose_nothing() -> None:
    """Without a journal: the store process keeps streams and sessions."""
    with running_workers(WORKER_FAULTS, False) as node:
        await assert_survives(node)


async def test_killed_store_process_with_a_journal_loses_no_acknowledged_message(tmp_path: Path) -> None:
    with running_workers(STORE_FAULTS, False, "--data_dir", str(tmp_path)) as node:
        await assert_survives(node)


async def test_store_process_without_a_journal_changes_the_epochs_so_that_clients_notice_the_loss() -> None:
    with running_workers(STORE_FAULTS, True) as node:
        await assert_survives(node)

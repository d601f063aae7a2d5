"""One node of four workers under faults: what was acknowledged is kept, delivered once, in order, and the same everywhere."""

import os
import secrets
from pathlib import Path

from tests.cluster.scenario import Size, figures, run_scenario
from tests.process_tree import workers
from tests.workers.workers_faults import STORE_FAULTS, WORKER_FAULTS, WORKERS, WorkersNode, running_workers

SECONDS = float(os.environ.get("WORKERS_SECONDS") or 0)
CLIENTS = int(os.environ.get("WORKERS_CLIENTS") or 60)
SIZE = Size(CLIENTS, publishers=6, pause=0.2 if CLIENTS < 100 else 0.5, seconds=SECONDS)


async def survived(node: WorkersNode) -> None:
    seed = int(os.environ.get("WORKERS_SEED") or secrets.randbelow(10**9))
    print(f"\n{WORKERS} workers with WORKERS_SEED={seed}")
    world, found = await run_scenario(node, SIZE, seed)
    print(f"  {figures(world, SIZE)}")
    log = node.server.log()
    assert found == [], f"with WORKERS_SEED={seed}\n{log}"
    assert "Traceback" not in log, log
    assert len(workers(node.server)) == WORKERS
    assert world.counts["resumed on the same node"] > CLIENTS
    assert node.server.stop() == 0


async def test_workers_that_are_killed_paused_and_replaced_cost_nothing() -> None:
    """Without a journal: streams and sessions are those of the store process."""
    with running_workers(WORKER_FAULTS, False) as node:
        await survived(node)


async def test_with_a_journal_nothing_acknowledged_is_lost_with_the_store_process(tmp_path: Path) -> None:
    with running_workers(STORE_FAULTS, False, "--data_dir", str(tmp_path)) as node:
        await survived(node)


async def test_a_store_process_that_loses_everything_changes_the_epochs_and_nothing_is_lost_in_silence() -> None:
    with running_workers(STORE_FAULTS, True) as node:
        await survived(node)

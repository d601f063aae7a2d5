"""Exactly-once delivery in both directions while drivers, JVMs, Python workers and the server are killed at random moments.

`CHAOS_KILLS` is the number of kills, `CHAOS_SEED` repeats the choices of a run. `make chaos` runs more of them and prints the
figures.
"""

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.spark.chaos.kills import Killer, seed, until
from tests.spark.chaos.processes import PROC
from tests.spark.chaos.proof import Proof
from tests.spark.chaos.traffic import Traffic
from tests.spark.chaos.world import World
from tests.spark.java import PROCESS_TIMEOUT

# By default every kind of kill at least twice, so that each driver dies right after a commit.
KILLS = int(os.environ.get("CHAOS_KILLS", "12"))


@pytest.mark.tier("all")
@pytest.mark.timeout(PROCESS_TIMEOUT + 60 * KILLS)
@pytest.mark.skipif(not (PROC / "self" / "stat").exists(), reason="finds the processes to kill in /proc, which only Linux has")
async def test_every_row_is_archived_and_published_once_despite_kills(tmp_path: Path) -> None:
    chosen, started = seed(), time.monotonic()
    print(f"\nCHAOS_SEED={chosen} CHAOS_KILLS={KILLS}")
    chance = random.Random(chosen)
    world = await asyncio.to_thread(World, tmp_path)
    killer = Killer(world, chance)
    try:
        async with Traffic(world.server.url, random.Random(chosen)) as traffic:
            await killer.run(KILLS)
            await traffic.stop_publishing()
            await until(world.caught_up, "everything is archived and published", world)
            await until(traffic.calm, "the subscribers have it", world)
        await asyncio.to_thread(world.restart_server)
        await until(world.caught_up, "the end of the sessions is archived", world)
        batches = {query: world.checkpoints.done(query) for queries in world.queries.values() for query in queries}
    finally:
        await asyncio.to_thread(world.close)

    proof = Proof(tmp_path)
    proof.streams_are_dense()
    figures: Counter[str] = Counter({f"kills: {kind}": count for kind, count in killer.kills.items()})
    figures.update(world.counts)
    figures["queries that failed with a worker and were started again"] = len(world.failed_queries())
    figures.update({f"batches: {query}": count for query, count in batches.items()})
    figures["rows in the journal, and the same in the archive"] = proof.archive_equals_journal()
    figures["messages published, each once where its receipt says"] = proof.published_once(traffic.published)
    figures.update({f"messages through Spark, each once: {name}": count for name, count in proof.delivered_once().items()})
    figures["messages seen by live subscribers, each once in order"] = sum(proof.seen_once(seen) for seen in traffic.seen)
    figures["seconds"] = round(time.monotonic() - started)
    print("\n".join(f"  {count:9,}  {what}" for what, count in figures.items()))
    assert killer.kills.total() == KILLS

"""Archive and trimmed journal have exactly the published messages, and readers are notified of every gap, despite kills.

Archiving, compaction, vacuum, cold readers of three kinds and a Spark stream run at the same time, while the server, the
driver, its JVM, its workers and the compaction are killed. `CHAOS_CYCLES` is the number of kills, `CHAOS_SEED` repeats them.
"""

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ropewalk.pipeline.context import Context, Place
from ropewalk.pipeline.jobs.audit import audited
from tests.spark.chaos.cold import COMPLETE, KINDS, ColdReaders
from tests.spark.chaos.kills import Killer, seed, until
from tests.spark.chaos.processes import PROC
from tests.spark.chaos.proof import Proof
from tests.spark.chaos.traffic import Traffic
from tests.spark.chaos.world import TIERS, World
from tests.spark.java import PROCESS_TIMEOUT
from tests.spark.journal import batch

CYCLES = int(os.environ.get("CHAOS_CYCLES", "5"))
# Messages that are published after archiving has stopped.
REST = 300
# Processes that start quickly are killed more often.
KILLS = ("server", "JVM", "tending", "worker", "driver", "server", "worker", "tending", "server", "worker")


@pytest.mark.tier("all")
@pytest.mark.timeout(PROCESS_TIMEOUT + 60 * CYCLES)
@pytest.mark.skipif(not (PROC / "self" / "stat").exists(), reason="finds the processes to kill in /proc, which only Linux has")
async def test_archive_and_journal_have_all_messages_and_readers_see_every_gap_despite_kills(
    spark: SparkSession, tmp_path: Path
) -> None:
    chosen, started = seed(), time.monotonic()
    print(f"\nCHAOS_SEED={chosen} CHAOS_CYCLES={CYCLES}")
    world = await asyncio.to_thread(World, tmp_path, TIERS)
    killer = Killer(world, random.Random(chosen), KILLS)
    try:
        async with Traffic(world.server.url, random.Random(chosen), subscribers=0) as traffic:
            readers = ColdReaders(world.server.url, tmp_path / "archive", traffic, random.Random(chosen))
            await until(world.trimmed, "the journal has let go of its beginning", world)
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(readers.run())
                await killer.run(CYCLES, lambda: everything_worked(world, readers))
                await everything_worked(world, readers)
                reading.cancel()
            await asyncio.to_thread(world.stop_archiving)
            archived = len(traffic.published)
            await until(lambda: len(traffic.published) >= archived + REST, "something is in the journal only", world)
            await traffic.stop_publishing()
            read = await readers.read_everything()
        await until(world.deserted, "no session is left", world)
        await asyncio.to_thread(world.restart_server)
        everything = await asyncio.to_thread(
            batch(spark, world.server, columns="journal", archive=tmp_path / "archive").toArrow
        )
        report = await asyncio.to_thread(
            audited, Context(Place(world.server.url, "", str(tmp_path / "archive"), tmp_path), lambda: spark)
        )
        batches = {query: world.checkpoints.done(query) for queries in world.queries.values() for query in queries}
    finally:
        await asyncio.to_thread(world.close)

    proof = Proof(tmp_path)
    proof.streams_are_dense()
    figures: Counter[str] = Counter({f"kills: {kind}": count for kind, count in killer.kills.items()})
    figures.update(world.counts)
    figures["queries that failed with a worker and were started again"] = len(world.failed_queries())
    figures.update({f"batches: {query}": count for query, count in batches.items()})
    compacted, _, rewritten, vacuumed = map(sum, zip(*world.tended(), strict=True))
    figures["rounds of compaction and vacuum"] = len(world.tended())
    figures["files compacted"] = compacted
    figures["rows rewritten by it"] = rewritten
    figures["files vacuumed"] = vacuumed
    figures.update({f"cold reads, {kind}: {ended}": count for (kind, ended), count in sorted(readers.ends.items())})
    figures["messages published, each once where its receipt says"] = proof.published_once(traffic.published)
    figures["of them read cold at the end, by REST and by cable"] = read
    figures.update(proof.tiers())
    copied = spark.read.parquet(str(tmp_path / "copy")).toArrow()
    figures["rows of the Spark stream over both, up to its end, equal in every column"] = proof.begins_with(copied)
    figures["rows of a Spark batch over both, equal in every column"] = proof.begins_with(everything)
    figures["seconds"] = round(time.monotonic() - started)
    print("\n".join(f"  {count:9,}  {what}" for what, count in figures.items()))
    print(report.text)

    assert report.holds, report.text
    assert report.messages == len(traffic.published)
    assert killer.kills.total() == CYCLES
    assert all(readers.ends[kind, COMPLETE] for kind in KINDS)
    assert len(everything) == proof.rows
    assert figures["rows in the archive only"] > 0
    assert figures["rows in the journal only"] >= REST
    assert vacuumed > 0


async def everything_worked(world: World, readers: ColdReaders) -> None:
    """Wait until the archive was compacted and vacuumed, and every kind of reader had a response, since this call."""
    rounds, reads = len(world.tended()), readers.done()
    await until(
        lambda: len(world.tended()) > rounds and all(count > reads[kind] for kind, count in readers.done().items()),
        "the archive is tended and read",
        world,
    )

"""The Spark session of the jobs: a lower priority than the server on the same machine, and queries that can be stopped."""

import os
import threading
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from ropewalk.pipeline import session
from ropewalk.pipeline.jvm import LOWEST, NICE
from tests.waiting import until


def test_jvm_and_python_workers_have_a_lower_priority(spark: SparkSession) -> None:
    asked = int(spark.sparkContext.getConf().get(NICE, "0"))
    expected = min(LOWEST, os.nice(0) + asked)

    jvm = os.getpriority(os.PRIO_PROCESS, session._running[-1].pid)
    workers = spark.sparkContext.range(2).map(lambda _: os.nice(0)).collect()

    assert asked > 0
    assert int(session.settings()[NICE]) > 0
    assert {jvm, *workers} == {expected}


def test_autogroup_of_the_jvm_has_a_lower_priority(spark: SparkSession) -> None:
    """With autogroups, Linux applies a priority only within its own session of processes."""
    group = Path(f"/proc/{session._running[-1].pid}/autogroup")
    if not group.exists():
        pytest.skip("this system has no autogroups")

    assert group.read_text().split()[-1] == spark.sparkContext.getConf().get(NICE)


def test_cluster_sessions_keep_their_priority() -> None:
    assert NICE not in session.settings(**{"spark.master": "spark://master:7077"})


async def test_query_stopped_during_a_batch_reports_a_long_error(spark: SparkSession, tmp_path: Path) -> None:
    """Spark matches the error of the interrupted batch with a regular expression that needs stack for each character. If the
    stack overflows, the query's thread dies with a trace on standard error and the query has no exception."""
    running, stopping = threading.Event(), threading.Event()

    def take(rows: DataFrame, batch: int) -> None:
        running.set()
        stopping.wait(30)
        raise RuntimeError("py4j.protocol.Py4JJavaError: An error occurred while calling o1.collect\n" + "x" * 30_000)

    writer = spark.readStream.format("rate").load().writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert running.wait(30)
    stop = threading.Thread(target=query.stop)
    stop.start()
    await until(lambda: not query.isActive)
    stopping.set()
    stop.join()

    assert "x" * 1000 in str(query.exception())

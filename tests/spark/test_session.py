"""The Spark session of the jobs runs with a lower priority than the server on the same machine."""

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ropewalk.pipeline import session
from ropewalk.pipeline.jvm import LOWEST, NICE


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

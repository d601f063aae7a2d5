"""The Spark session of our jobs, on the machine that it shares with the server."""

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ropewalk.pipeline import session
from ropewalk.pipeline.jvm import LOWEST, NICE


def test_spark_and_its_workers_give_way_to_the_server(spark: SparkSession) -> None:
    asked = int(spark.sparkContext.getConf().get(NICE, "0"))
    expected = min(LOWEST, os.nice(0) + asked)

    jvm = os.getpriority(os.PRIO_PROCESS, session._running[-1].pid)
    workers = spark.sparkContext.range(2).map(lambda _: os.nice(0)).collect()

    assert asked > 0
    assert int(session.settings()[NICE]) > 0
    assert {jvm, *workers} == {expected}


def test_the_session_of_processes_that_spark_is_in_gives_way_too(spark: SparkSession) -> None:
    """Where Linux weighs sessions of processes against each other, a priority within one of them says nothing outside."""
    group = Path(f"/proc/{session._running[-1].pid}/autogroup")
    if not group.exists():
        pytest.skip("this system does not weigh sessions against each other")

    assert group.read_text().split()[-1] == spark.sparkContext.getConf().get(NICE)


def test_a_cluster_has_its_own_rules() -> None:
    assert NICE not in session.settings(**{"spark.master": "spark://master:7077"})

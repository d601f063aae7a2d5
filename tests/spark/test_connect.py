"""Source and sink with Spark Connect, in a process of its own: a program has either a JVM or a connection."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server import RunningServer
from tests.spark.java import PROCESS_TIMEOUT, START_AND_RUN_SECONDS, java_home
from tests.spark.journal import kept, publish_all

pytestmark = [pytest.mark.tier("all"), pytest.mark.timeout(PROCESS_TIMEOUT)]

PROGRAM = """
import sys, tempfile
from pyspark.sql import SparkSession

url = sys.argv[1]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
rows = spark.readStream.format("ropewalk").option("url", url).option("subscribe", "connect/in")
frame = rows.option("startingOffsets", "earliest").load().selectExpr("'connect/out' as stream", "value")
with tempfile.TemporaryDirectory() as home:
    writer = frame.writeStream.format("ropewalk").option("url", url).option("checkpointLocation", home)
    writer.trigger(availableNow=True).start().awaitTermination()
print("done")
spark.stop()
"""


def test_source_and_sink_work_in_a_connect_session(server: RunningServer, tmp_path: Path) -> None:
    publish_all(server, [("connect/in", n) for n in range(25)])
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}
    words = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    environ = {**os.environ, "JAVA_HOME": java_home(tmp_path), "PYSPARK_PYTHON": sys.executable}
    environ["PYSPARK_SUBMIT_ARGS"] = f"{words} pyspark-shell"

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.url],
        capture_output=True,
        text=True,
        env=environ,
        check=False,
        timeout=START_AND_RUN_SECONDS,
    )

    assert "done" in done.stdout, done.stderr
    assert sorted(kept(server, "connect/out")) == list(range(25))

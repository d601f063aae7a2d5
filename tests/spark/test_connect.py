"""The format works through Spark Connect too. In a process of its own: a program has either a JVM or a connection."""

import os
import subprocess
import sys
from pathlib import Path

from tests.server import RunningServer
from tests.spark.java import START_AND_RUN_SECONDS, java_home
from tests.spark.journal import kept, publish_all

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


def test_source_and_sink_are_found_by_a_connect_session(server: RunningServer, tmp_path: Path) -> None:
    publish_all(server, [("connect/in", n) for n in range(25)])
    environ = {**os.environ, "JAVA_HOME": java_home(tmp_path), "PYSPARK_PYTHON": sys.executable}

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

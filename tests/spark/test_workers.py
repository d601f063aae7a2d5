"""Spark with a server of several processes: each worker forwards requests to the store, which has the journal."""

import os
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.process_tree import store
from tests.server import running_server
from tests.spark.journal import FLAGS, batch, finish, forget_last_commit, kept, publish_all, stream
from tests.waiting import wait_until

pytestmark = pytest.mark.tier("all")


def test_rows_of_workers_are_read_and_rows_of_spark_are_published_once(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    with running_server(*FLAGS, "--workers", "2", "--data_dir", str(tmp_path / "data")) as server:
        published = publish_all(server, [(f"in/{n % 3}", n) for n in range(150)])
        rows = batch(spark, server, subscribePattern="in/.*").where("event = 'publish'").collect()
        assert sorted((row.stream, row.epoch, row.offset) for row in rows) == sorted(published)
        for lost in (1, 2):  # the second time neither the driver nor the store has seen the commit
            values = stream(spark, server, subscribePattern="in/.*").select(f.col("value").cast("string").alias("value"))
            writer = values.writeStream.format("ropewalk").option("url", server.url).option("stream", "out")
            finish(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start())
            forget_last_commit(checkpoint)
            os.kill(store(server), signal.SIGKILL)
            wait_until(lambda lost=lost: server.log().count("connected to the store again") == 2 * lost)  # type: ignore[misc]
        assert sorted(kept(server, "out")) == list(range(150))

"""The Spark sink publishes every row once: with failing tasks, crashes, repeated batches and shuffles."""

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.server import RunningServer
from tests.spark.journal import batch, finish, forget_last_commit, kept, publish_all, stream


def failing_once(frame: DataFrame, home: Path) -> DataFrame:
    """The same rows, but the first attempt of every task fails after some of them."""
    seen = str(home)

    def flaky(value: str) -> str:
        import os

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        name = f"{seen}/{context.getLocalProperty('streaming.sql.batchId')}-{context.partitionId()}"
        if int(json.loads(value)) % 7 == 0 and not os.path.exists(name):
            with open(name, "w"):
                raise RuntimeError("on purpose")
        return value

    return frame.withColumn("value", f.udf(flaky, "string", useArrow=False)("value"))


def published(frame: DataFrame, server: RunningServer, home: Path, **options: object) -> StreamingQuery:
    writer: DataStreamWriter = frame.writeStream.format("ropewalk").option("url", server.url)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    return finish(writer.option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start())


def values(frame: DataFrame) -> DataFrame:
    return frame.select(f.col("value").cast("string").alias("value"), "stream", "epoch", "offset")


@pytest.mark.tier("all")
def test_failing_tasks_and_a_shuffle_publish_every_row_once(spark: SparkSession, server: RunningServer, tmp_path: Path) -> None:
    publish_all(server, [(f"in/{n % 5}", n) for n in range(300)])
    failures = tmp_path / "failures"
    failures.mkdir()
    rows = stream(spark, server, subscribePattern="in/.*", maxOffsetsPerTrigger=120)
    shuffled = failing_once(values(rows).repartition(3), failures)

    published(shuffled, server, tmp_path, stream="out/shuffled")

    assert list(failures.iterdir())
    assert sorted(kept(server, "out/shuffled")) == list(range(300))


def test_repeated_batch_is_not_published_again(spark: SparkSession, server: RunningServer, tmp_path: Path) -> None:
    publish_all(server, [("repeated/1", n) for n in range(100)])
    frame = values(stream(spark, server, subscribe="repeated/1")).repartition(3)
    published(frame, server, tmp_path, stream="out/repeated")
    forget_last_commit(tmp_path / "checkpoint")
    publish_all(server, [("repeated/1", n) for n in range(100, 130)])

    again = published(frame, server, tmp_path, stream="out/repeated")

    assert again.recentProgress[0].numInputRows == 100
    assert sorted(kept(server, "out/repeated")) == list(range(130))


def test_rows_of_a_partition_keep_their_order(spark: SparkSession, server: RunningServer, tmp_path: Path) -> None:
    publish_all(server, [("order/1", n) for n in range(500)])
    frame = values(stream(spark, server, subscribe="order/1")).withColumn("stream", f.lit("out/order"))

    published(frame, server, tmp_path, batchRows=64)

    assert kept(server, "out/order") == list(range(500))


@pytest.mark.tier("all")
def test_idempotent_delivery_publishes_every_row_once(spark: SparkSession, server: RunningServer, tmp_path: Path) -> None:
    publish_all(server, [(f"numbers/{n % 3}", n) for n in range(150)])
    failures = tmp_path / "failures"
    failures.mkdir()
    frame = failing_once(values(stream(spark, server, subscribePattern="numbers/.")), failures)
    published(frame, server, tmp_path, stream="out/numbers", delivery="idempotent", batchRows=10)
    forget_last_commit(tmp_path / "checkpoint")

    published(frame, server, tmp_path, stream="out/numbers", delivery="idempotent", batchRows=10)

    assert list(failures.iterdir())
    assert sorted(kept(server, "out/numbers")) == list(range(150))


def test_keyed_rows_of_two_writers_are_published_once(spark: SparkSession, server: RunningServer) -> None:
    publish_all(server, [("keys/1", n) for n in range(60)])
    rows = values(batch(spark, server, subscribe="keys/1"))
    keyed = rows.withColumn("idempotency_key", f.concat_ws(":", "stream", "epoch", "offset")).drop("stream")

    for parts in (1, 3):
        writer = keyed.repartition(parts).write.format("ropewalk").option("url", server.url).mode("append")
        writer.option("stream", "out/keys").option("delivery", "keyed").save()

    assert sorted(kept(server, "out/keys")) == list(range(60))


def test_write_with_a_transaction_version_happens_once(spark: SparkSession, server: RunningServer) -> None:
    frame = spark.range(50).select(f.col("id").cast("string").alias("value"), f.lit("out/named").alias("stream"))

    for version in (7, 7, 6, 8):
        writer = frame.repartition(2).write.format("ropewalk").option("url", server.url).mode("append")
        writer.option("txnAppId", "nightly").option("txnVersion", version).save()

    assert sorted(kept(server, "out/named")) == sorted([*range(50), *range(50)])


def test_invalid_row_fails_the_whole_write(spark: SparkSession, server: RunningServer) -> None:
    frame = spark.createDataFrame([("out/bad", "1"), ("out/bad", None)], "stream string, value string").coalesce(1)

    with pytest.raises(PySparkException, match="1 rows have no value"):
        frame.write.format("ropewalk").option("url", server.url).mode("append").save()
    with pytest.raises(PySparkException, match="needs the column stream"):
        frame.drop("stream").write.format("ropewalk").option("url", server.url).mode("append").save()

    assert batch(spark, server, subscribe="out/bad").count() == 0


def test_overwrite_mode_is_refused(spark: SparkSession, server: RunningServer) -> None:
    frame = spark.createDataFrame([("kept", "1")], "stream string, value string")
    with pytest.raises(PySparkException, match="only ever appended"):
        frame.write.format("ropewalk").option("url", server.url).mode("overwrite").save()
    assert not [row for row in batch(spark, server).collect() if row.stream == "kept"]

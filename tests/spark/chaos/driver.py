"""A driver process of its own: `python -m tests.spark.chaos.driver archive|sinks|tiers URL HOME`.

It keeps its queries going until it is killed. A query that fails, as one whose Python process was killed does, is started
again; one that lost or refused something is not.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ropewalk.pipeline.jvm import NICE
from ropewalk.pipeline.session import spark_session
from tests.spark.chaos.child import end_with_the_test, report

TRIGGER = "200 milliseconds"
# For a reader that finds the journal trimmed in every batch.
SLOW = {"copy": "15 seconds"}
BATCH_ROWS = 2_000
# What another attempt would only hide.
HOPELESS = ("UserMistake", "DataLoss", "JournalRefused", "CommitFailedError")

Build = Callable[[SparkSession, str, Path], DataStreamWriter]


def journal(spark: SparkSession, url: str, rows: int = BATCH_ROWS, **options: str) -> DataFrame:
    reader = spark.readStream.format("ropewalk").option("url", url).option("startingOffsets", "earliest")
    return reader.options(maxOffsetsPerTrigger=str(rows), **options).load()


def archive(spark: SparkSession, url: str, home: Path) -> DataStreamWriter:
    # As the job does it: a batch that runs again after its commit finds its rows there, if the journal has let go of them.
    rows = journal(spark, url, columns="journal", archive=str(home / "archive"))
    writer = rows.writeStream.format("ropewalk_archive")
    return writer.option("path", str(home / "archive")).option("url", url)


def copy(spark: SparkSession, url: str, home: Path) -> DataStreamWriter:
    """The whole log as a late reader gets it: the archive, then the rest from the journal."""
    rows = journal(spark, url, 10 * BATCH_ROWS, columns="journal", archive=str(home / "archive"))
    return rows.writeStream.format("parquet").option("path", str(home / "copy"))


def outgoing(spark: SparkSession, url: str, delivery: str) -> DataFrame:
    """Every row of the streams in/… as one row for a stream out/<delivery>/… with the position of its source."""
    rows = journal(spark, url, subscribePattern="in/.*").where("event = 'publish'")
    return rows.selectExpr(
        f"concat('out/{delivery}/', substring(stream, 4)) AS stream",
        "to_json(struct(stream, epoch, offset, cast(value AS string) AS value)) AS value",
        "concat_ws(':', stream, epoch, offset) AS uid",
    )


def publishing(frame: DataFrame, url: str, delivery: str) -> DataStreamWriter:
    return frame.writeStream.format("ropewalk").option("url", url).option("delivery", delivery)


def transactional(spark: SparkSession, url: str, home: Path) -> DataStreamWriter:
    # Without the uid, which would hide what the transactions let through; and through a shuffle.
    return publishing(outgoing(spark, url, "transactional").drop("uid").repartition(3), url, "transactional")


def idempotent(spark: SparkSession, url: str, home: Path) -> DataStreamWriter:
    return publishing(outgoing(spark, url, "idempotent").drop("uid"), url, "idempotent")


def keyed(spark: SparkSession, url: str, home: Path) -> DataStreamWriter:
    return publishing(outgoing(spark, url, "keyed"), url, "keyed")


QUERIES: dict[str, dict[str, Build]] = {
    "archive": {"archive": archive},
    "sinks": {"transactional": transactional, "idempotent": idempotent, "keyed": keyed},
    "tiers": {"archive": archive, "copy": copy},
}


def main(kind: str, url: str, home: Path) -> None:
    end_with_the_test()
    spark = spark_session(
        f"chaos {kind}",
        **{
            "spark.master": "local[2,3]",
            "spark.driver.memory": "512m",
            NICE: "0",  # it is to be at work when it is killed, not to wait for those who kill it
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    spark.sparkContext.setLogLevel("OFF")

    def start(name: str) -> StreamingQuery:
        writer = QUERIES[kind][name](spark, url, home).option("checkpointLocation", str(home / "checkpoints" / name))
        return writer.queryName(name).trigger(processingTime=SLOW.get(name, TRIGGER)).start()

    running = {name: start(name) for name in QUERIES[kind]}
    report("started", kind)
    while True:
        for name, query in running.items():
            if not query.isActive:
                mourn(name, query)
                running[name] = start(name)
        time.sleep(0.05)


def mourn(name: str, query: StreamingQuery) -> None:
    failure = str(query.exception())
    report("failed", f"{name}: {failure}")
    if any(word in failure for word in HOPELESS):
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))

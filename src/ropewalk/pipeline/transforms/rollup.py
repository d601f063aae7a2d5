"""Rows of the journal to figures by stream and minute of event time, in two steps that work over any split of the rows.

Distinct publishers and subscribers are kept as sketches: two parts of a minute add up without counting anybody twice.
"""

import datetime
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ropewalk.pipeline.transforms.audience import listening

KEYS = ("date", "minute", "stream")
SKETCHES = ("publisher_sketch", "subscriber_sketch")
SUMS = ("messages", "bytes", "late")


def newest(rows: DataFrame) -> dict[int, datetime.datetime]:
    """The newest time of each shard."""
    found = rows.groupBy("shard").agg(F.max("timestamp").alias("newest")).where("newest IS NOT NULL").collect()
    return {row["shard"]: row["newest"] for row in found}


def timed(rows: DataFrame, known: Mapping[int, datetime.datetime], lateness: datetime.timedelta) -> DataFrame:
    """The rows with `late`: further behind an earlier row of their own shard than is forgiven.

    Shards come at different speeds, and in a backlog days apart: one that is behind another is not late. `known` is the newest
    time of each shard before these rows.
    """
    before = Window.partitionBy("shard").orderBy("position").rowsBetween(Window.unboundedPreceding, -1)
    earlier = F.lit(None).cast("timestamp")
    for shard, newest in known.items():
        earlier = F.when(F.col("shard") == shard, F.lit(newest)).otherwise(earlier)
    reached = F.greatest(F.max("timestamp").over(before), earlier)
    return rows.withColumn("late", F.coalesce(F.col("timestamp") < reached - F.lit(lateness), F.lit(False)))


def minutely(rows: DataFrame, intervals: DataFrame) -> DataFrame:
    """Partial figures of some `timed` rows, and of those who listened meanwhile (see `audience`).

    Late publications count where they belong, and are counted as late.
    """
    seen = mentions(rows, intervals)
    published = F.col("event") == "publish"
    late = published & F.col("late")
    return (
        seen.withColumn("minute", F.date_trunc("minute", "timestamp"))
        .withColumn("date", F.date_format("minute", "yyyy-MM-dd"))
        .groupBy(*KEYS)
        .agg(
            F.count_if(published).alias("messages"),
            F.coalesce(F.sum(F.when(published, F.octet_length("value"))), F.lit(0)).alias("bytes"),
            F.count_if(late).alias("late"),
            F.hll_sketch_agg(F.when(published, publisher())).alias("publisher_sketch"),
            F.hll_sketch_agg(F.when(~published, F.col("sid"))).alias("subscriber_sketch"),
            F.max("timestamp").alias("last_at"),
        )
    )


def combined(parts: DataFrame) -> DataFrame:
    """Figures of minutes whose parts lie in several rows; with derived figures."""
    whole = parts.groupBy(*KEYS).agg(
        *(F.sum(name).alias(name) for name in SUMS),
        *(F.hll_union_agg(name).alias(name) for name in SKETCHES),
        F.max("last_at").alias("last_at"),
    )
    told = whole.withColumn("publishers", F.hll_sketch_estimate("publisher_sketch")).withColumn(
        "subscribers", F.hll_sketch_estimate("subscriber_sketch")
    )
    return told.withColumn("deliveries", F.col("messages") * F.col("subscribers")).select(
        *KEYS, "messages", "bytes", "publishers", "subscribers", "deliveries", "late", "last_at", *SKETCHES
    )


def publisher() -> Column:
    """The publisher, if known: the application of a transaction, or the excluded session."""
    return F.coalesce(F.nullif(F.col("producer"), F.lit("")), F.nullif(F.col("exclude_socket"), F.lit("")))


def mentions(rows: DataFrame, intervals: DataFrame) -> DataFrame:
    """One row for each publication, and one for each session that listened to its stream in that minute."""
    columns = ("event", "timestamp", "value", "producer", "exclude_socket", "sid", "stream", "late")
    publications = rows.where("event = 'publish' AND stream IS NOT NULL").select(*columns)
    minutes = publications.select("stream", F.date_trunc("minute", "timestamp").alias("minute")).distinct()
    listeners = listening(intervals, minutes).withColumnRenamed("minute", "timestamp").withColumn("event", F.lit("listened"))
    return publications.unionByName(listeners, allowMissingColumns=True)

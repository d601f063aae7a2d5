"""Rows of the journal to figures by stream and minute of event time, in two steps that work over any split of the rows.

Distinct publishers and subscribers are kept as sketches: two parts of a minute add up without counting anybody twice.
"""

import datetime
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

KEYS = ("date", "minute", "stream")
SKETCHES = ("publisher_sketch", "subscriber_sketch")
SUMS = ("messages", "bytes", "late")

# What a session's rows say of its streams: one subscription, or, told again from time to time, all of them.
_GRANTED = "streams array<string>"
_WHOLE = "snapshot struct<subscriptions: map<string, struct<streams: array<string>>>>"


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


def minutely(rows: DataFrame) -> DataFrame:
    """Partial figures of some `timed` rows. Late publications count where they belong, and are counted as late."""
    seen = mentions(rows)
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
    """Figures of minutes whose parts lie in several rows; with what can be told of them."""
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
    """Who published, where the row knows: the application of a transaction, or the session that asked not to hear itself."""
    return F.coalesce(F.nullif(F.col("producer"), F.lit("")), F.nullif(F.col("exclude_socket"), F.lit("")))


def mentions(rows: DataFrame) -> DataFrame:
    """One row for each stream that a row of the journal speaks of: a publication's, or those a session is subscribed to."""
    granted = F.from_json("detail", _GRANTED)["streams"]
    whole = F.flatten(F.transform(F.map_values(F.from_json("detail", _WHOLE)["snapshot"]["subscriptions"]), _streams))
    streams = (
        F.when(F.col("event") == "publish", F.array("stream"))
        .when(F.col("event") == "subscribed", granted)
        .when(F.col("event").isin("alive", "restored"), F.array_distinct(whole))
    )
    columns = ("event", "timestamp", "value", "producer", "exclude_socket", "sid", "late")
    return rows.select(*columns, F.explode(streams).alias("stream")).where(F.col("stream").isNotNull())


def _streams(subscription: Column) -> Column:
    return subscription["streams"]

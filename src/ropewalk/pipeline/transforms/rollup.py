"""Rows of the journal to figures by stream and minute of event time, in two steps that work over any split of the rows.

Distinct publishers and subscribers are kept as sketches: two parts of a minute add up without counting anybody twice.
"""

import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ropewalk.pipeline.transforms.audience import listening

KEYS = ("date", "minute", "stream")
SKETCHES = ("publisher_sketch", "subscriber_sketch")
SUMS = ("messages", "bytes", "late")


def minutely(rows: DataFrame, intervals: DataFrame, watermark: datetime.datetime | None = None) -> DataFrame:
    """Partial figures of some rows, and of those who listened meanwhile (see `audience`).

    Publications before the watermark count where they belong, and are counted as late.
    """
    seen = mentions(rows, intervals)
    published = F.col("event") == "publish"
    late = published & (F.col("timestamp") < F.lit(watermark)) if watermark else F.lit(False)
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


def mentions(rows: DataFrame, intervals: DataFrame) -> DataFrame:
    """One row for each publication, and one for each session that listened to its stream in that minute."""
    columns = ("event", "timestamp", "value", "producer", "exclude_socket", "sid", "stream")
    publications = rows.where("event = 'publish' AND stream IS NOT NULL").select(*columns)
    minutes = publications.select("stream", F.date_trunc("minute", "timestamp").alias("minute")).distinct()
    listeners = listening(intervals, minutes).withColumnRenamed("minute", "timestamp").withColumn("event", F.lit("listened"))
    return publications.unionByName(listeners, allowMissingColumns=True)

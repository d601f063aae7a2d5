"""Subscriptions to streams over time, from session rows: a session writes its subscriptions when they change.

Each subscription is an interval, from the row that begins it to the one that ends it. Rows of one session share a shard, so
their positions are their order.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

COLUMNS = ("sid", "identifier", "streams", "since", "position")
SCHEMA = "sid string, identifier string, streams array<string>, since timestamp, position bigint"

_GRANTED = "identifier string, streams array<string>"
_CHANGED = "subscription struct<identifier: string, streams: array<string>>"
_WHOLE = "snapshot struct<subscriptions: map<string, struct<streams: array<string>>>>"


def intervals(rows: DataFrame, before: DataFrame) -> DataFrame:
    """The subscriptions of these rows and those `before`. `until` is null while one goes on; `fresh`: told by a row."""
    told = rows.select("sid", "position", F.col("timestamp").alias("since"), F.explode(_subscriptions()).alias("told"))
    fresh = told.select("sid", "told.*", "since", "position", F.lit(True).alias("fresh"))
    every = fresh.where("identifier IS NOT NULL").unionByName(before.withColumn("fresh", F.lit(False)))
    gone = rows.where(F.col("event").isin("disconnected", "ended")).groupBy("sid").agg(F.min("timestamp").alias("gone"))
    following = F.lead("since").over(Window.partitionBy("sid", "identifier").orderBy("position"))
    return every.withColumn("next", following).join(gone, "sid", "left").withColumn("until", F.least("next", "gone"))


def remaining(intervals: DataFrame) -> DataFrame:
    """Those that go on: the `before` of the next rows."""
    return intervals.where("until IS NULL AND size(streams) > 0").select(*COLUMNS)


def listening(intervals: DataFrame, minutes: DataFrame) -> DataFrame:
    """A row (stream, minute, sid) for each session that was subscribed in one of these minutes, or subscribed in any minute."""
    heard = intervals.select("sid", "since", "until", "fresh", F.explode("streams").alias("stream"))
    end = F.col("minute") + F.expr("INTERVAL 1 MINUTE")
    during = minutes.join(heard, "stream").where(
        (F.col("since") < end) & (F.col("until").isNull() | (F.col("until") > F.col("minute")))
    )
    began = heard.where("fresh").withColumn("minute", F.date_trunc("minute", "since"))
    columns = ("stream", "minute", "sid")
    return during.select(*columns).unionByName(began.select(*columns)).distinct()


def _subscriptions() -> Column:
    """The subscriptions of a row: identifiers with their streams, none for an ended one."""
    event = F.col("event")
    whole = F.from_json("detail", _WHOLE)["snapshot"]["subscriptions"]
    return (
        F.when(event.isin("subscribed", "unsubscribed"), F.array(_pair(F.from_json("detail", _GRANTED))))
        .when(event == "changed", F.array(_pair(F.from_json("detail", _CHANGED)["subscription"])))
        .when(event.isin("alive", "restored"), F.transform(F.map_entries(whole), _entry))
    )


def _pair(granted: Column) -> Column:
    return F.struct(granted["identifier"].alias("identifier"), granted["streams"].alias("streams"))


def _entry(entry: Column) -> Column:
    return F.struct(entry["key"].alias("identifier"), entry["value"]["streams"].alias("streams"))

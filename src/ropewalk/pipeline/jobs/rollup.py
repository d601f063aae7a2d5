"""`rollup`: figures by stream and minute, in a table that every batch corrects.

Each batch is summed up separately and merged into the minutes it touches, so late rows count like any others. Distinct
publishers and subscribers are sketches, so merging parts of a minute counts none twice. Subscriptions are carried from batch to
batch, because sessions write them only when they change.
"""

import datetime
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ropewalk.pipeline.config import seconds
from ropewalk.pipeline.context import Context, StreamOptions
from ropewalk.pipeline.registry import job
from ropewalk.pipeline.tables import JobTable, query_id

AUDIENCE = "-audience"
"""Suffix of the directory with the open subscriptions, which the next batch needs."""


class RollupOptions(StreamOptions, frozen=True, kw_only=True):
    lateness: Annotated[
        str, Meta(description="How far behind an earlier row of its shard one may be before it counts as late.")
    ] = "1m"
    table: Annotated[str, Meta(description="Directory of the table; empty takes one in `state_dir`.")] = ""


@job("rollup", "count messages, bytes, publishers and deliveries by stream and minute", RollupOptions)
def rollup(context: Context, options: RollupOptions) -> DataStreamWriter:
    fold = Fold(
        options.table or context.table,
        context.checkpoint(options),
        datetime.timedelta(seconds=seconds(options.lateness)),
    )
    return context.journal(options).writeStream.foreachBatch(fold.take)


class Fold:
    """Folds batches into the table."""

    def __init__(self, root: str, checkpoint: str, lateness: datetime.timedelta) -> None:
        self._root = root
        self._checkpoint = checkpoint
        self._lateness = lateness

    def take(self, rows: DataFrame, batch: int) -> None:
        rows = rows.persist()
        try:
            audience = JobTable(f"{self._root}{AUDIENCE}", query_id(self._checkpoint))
            present = intervals(rows, _known(rows.sparkSession, audience))
            self._count(rows, present, batch)
            # Last of all: when the batch comes again after a crash, the audience is still the one from before it.
            if not audience.has(batch) and rows.where(F.col("event") != "publish").limit(1).count():
                audience.overwrite(batch, remaining(present).toArrow())
        finally:
            rows.unpersist()

    def _count(self, rows: DataFrame, present: DataFrame, batch: int) -> None:
        table = JobTable(self._root, query_id(self._checkpoint), ["date"])
        if table.has(batch):
            return
        by_shard = rows.withColumnRenamed("partition", "shard")
        reached = _reached(table)
        new = minutely(timed(by_shard, reached, self._lateness), present).toArrow()
        if not new.num_rows:
            return
        minutes, dates = new["minute"].to_pylist(), set(new["date"].to_pylist())
        old = table.between("minute", min(minutes), max(minutes), sorted(dates))
        parts = [
            rows.sparkSession.createDataFrame(each.select(new.column_names))
            for each in (new, old)
            if each is not None and each.num_rows
        ]
        whole = combined(parts[0].unionByName(parts[1]) if len(parts) > 1 else parts[0]).toArrow()
        now = newest(by_shard)
        after = {shard: max(filter(None, (reached.get(shard), now.get(shard)))) for shard in reached.keys() | now.keys()}
        table.rewrite(batch, whole, "minute", note=msgspec.json.encode(after).decode())


def _reached(table: JobTable) -> dict[int, datetime.datetime]:
    """By shard, the newest time of the batches before this one, as the last of them left it."""
    note = table.note()
    return msgspec.json.decode(note, type=dict[int, datetime.datetime]) if note else {}


def _known(spark: SparkSession, audience: JobTable) -> DataFrame:
    """Who listened when the batch before ended."""
    table = audience.read()
    if table is None or not table.num_rows:  # Spark cannot take an Arrow table without rows
        return spark.createDataFrame([], SCHEMA)
    return spark.createDataFrame(table.select(COLUMNS))


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

"""`presence`: how many members each stream had, at most and at last, minute by minute.

The moves that were read are kept in a table of their own, and the figures of the streams that a batch touches are computed from
all of them: the result is the same however the journal was split into batches.
"""

from typing import Annotated

from msgspec import Meta
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ropewalk.pipeline.context import Context, StreamOptions
from ropewalk.pipeline.registry import job
from ropewalk.pipeline.tables import JobTable, query_id

KEYS = ("date", "minute", "stream")


class PresenceOptions(StreamOptions, frozen=True, kw_only=True):
    table: Annotated[str, Meta(description="Directory of the table; empty takes one in `state_dir`.")] = ""


@job("presence", "record the peak of members by stream and minute", PresenceOptions)
def presence(context: Context, options: PresenceOptions) -> DataStreamWriter:
    fold = PresenceFold(options.table or context.table, context.checkpoint(options))
    return context.journal(options, includeValue="false").writeStream.foreachBatch(fold.take)


class PresenceFold:
    """Folds batches into the table. Beside it, in `<table>-moves`, lies what the figures are computed from."""

    def __init__(self, root: str, checkpoint: str) -> None:
        self._root = root
        self._checkpoint = checkpoint

    def take(self, rows: DataFrame, batch: int) -> None:
        query = query_id(self._checkpoint)
        known = JobTable(f"{self._root}-moves", query, ["date"])
        table = JobTable(self._root, query, ["date"])
        new = moves(rows.withColumnRenamed("partition", "shard")).toArrow()
        if not new.num_rows or table.has(batch):
            return
        if not known.has(batch):
            known.append(batch, new)
        touched = rows.sparkSession.createDataFrame(new)
        every = known.frame(rows.sparkSession)
        theirs = every.join(touched.select("stream").distinct(), "stream", "left_semi")
        table.replace(batch, since(figures(theirs), touched).toArrow(), KEYS)


MOVES = ("date", "stream", "member", "at", "joined", "shard", "position")
FIGURES = ("date", "minute", "stream", "peak", "members", "joins", "leaves")
_DETAIL = "id string, told boolean"


def moves(rows: DataFrame) -> DataFrame:
    """First joins and last leaves of members: only these change how many there are."""
    detail: Column = F.from_json("detail", _DETAIL)
    told = rows.where(F.col("event").isin("joined", "left")).withColumn("who", detail).where("who.told")
    return told.select(
        F.date_format("timestamp", "yyyy-MM-dd").alias("date"),
        "stream",
        F.col("who.id").alias("member"),
        F.col("timestamp").alias("at"),
        (F.col("event") == "joined").alias("joined"),
        "shard",
        "position",
    )


def figures(moves: DataFrame) -> DataFrame:
    """A row for each stream and minute with joins or leaves, of all moves of these streams."""
    order = ("at", "shard", "position")
    member = Window.partitionBy("stream", "member").orderBy(*order)
    stream = Window.partitionBy("stream").orderBy(*order)
    # Repeated joins, and leaves of absent members, change nothing.
    before = F.coalesce(F.lag("joined").over(member), F.lit(False))
    change = F.col("joined").cast("int") - before.cast("int")
    counted = moves.withColumn("change", change).withColumn(
        "members", F.sum("change").over(stream.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    )
    minute = F.date_trunc("minute", "at")
    return (
        counted.withColumn("minute", minute)
        .groupBy("stream", "minute")
        .agg(
            # Members present at the beginning of the minute count too.
            F.max(F.greatest("members", F.col("members") - F.col("change"))).alias("peak"),
            F.max_by("members", F.struct(*order)).alias("members"),
            F.sum((F.col("change") > 0).cast("bigint")).alias("joins"),
            F.sum((F.col("change") < 0).cast("bigint")).alias("leaves"),
        )
        .withColumn("date", F.date_format("minute", "yyyy-MM-dd"))
        .select(*FIGURES)
    )


def since(figures: DataFrame, touched: DataFrame) -> DataFrame:
    """The figures of minutes that the moves `touched` can have changed: each stream's from the first of them on."""
    first = touched.groupBy("stream").agg(F.date_trunc("minute", F.min("at")).alias("first"))
    return figures.join(F.broadcast(first), "stream").where("minute >= first").select(*FIGURES)

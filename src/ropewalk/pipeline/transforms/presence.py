"""How many members a stream had, at most and at last, minute by minute, out of `joined` and `left` rows.

Rows of one member may lie in several shards and come in any order and any split. So the figures are a function of all moves of
a stream, and are recomputed from the first minute that a batch touches: how the moves came does not matter.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

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

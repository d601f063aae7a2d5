"""Checks of the log, as tables of faults: an empty table is a proof.

Rows are those of journal and archive under the same columns, with `shard` and `position` naming each of them. A shard that lost
something begins another generation, far above its old positions, and its streams other epochs: everything is proved generation
by generation.
"""

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ropewalk.model.journal import COLUMNS, GENERATION_SIZE

COMPARED = tuple(column.name for column in COLUMNS if column.name != "position")


def streams(rows: DataFrame) -> DataFrame:
    """By stream and epoch: first and last offset, how many rows, how many different offsets, and where it lies."""
    return (
        rows.where(F.col("event") == "publish")
        .groupBy("stream", "epoch")
        .agg(
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
            F.count("*").alias("rows"),
            F.count_distinct("offset").alias("different"),
            F.min("shard").alias("shard"),
            F.expr(f"min(position) div {GENERATION_SIZE}").alias("generation"),
        )
    )


def faults(streams: DataFrame, begins: DataFrame) -> DataFrame:
    """Streams with a hole or a duplicate.

    `begins` has the oldest position of each generation of a shard: where that is the generation's first, offsets begin with 1.
    """
    known = streams.join(F.broadcast(begins.withColumnRenamed("first", "oldest")), ["shard", "generation"], "left")
    first = F.when(F.col("oldest") % GENERATION_SIZE == 0, F.lit(1)).otherwise(F.col("first"))
    holes = F.col("last") - first + 1 - F.col("different")
    duplicates = F.col("rows") - F.col("different")
    found = known.select("stream", "epoch", first.alias("first"), "last", holes.alias("holes"), duplicates.alias("duplicates"))
    return found.where("holes != 0 OR duplicates != 0")


def shards(rows: DataFrame) -> DataFrame:
    """By shard and generation: first and last position, how many rows, how many different positions."""
    return rows.groupBy("shard", F.expr(f"position div {GENERATION_SIZE}").alias("generation")).agg(
        F.min("position").alias("first"),
        F.max("position").alias("last"),
        F.count("*").alias("rows"),
        F.count_distinct("position").alias("different"),
    )


def differences(journal: DataFrame, archive: DataFrame) -> DataFrame:
    """Positions that both should have and that one has not, or that both have with different rows."""
    key = ["shard", "position"]
    left = journal.select(*key, F.struct(*COMPARED).alias("journal"))
    right = archive.select(*key, F.struct(*COMPARED).alias("archive"))
    both = left.join(right, key, "full_outer").where(~F.col("journal").eqNullSafe(F.col("archive")))
    return both.select(*key, _difference().alias("difference"))


def within(rows: DataFrame, common: Mapping[tuple[int, int], tuple[int, int]]) -> DataFrame:
    """The rows whose position lies in one of the ranges [first, end), given by shard and generation."""
    inside = [
        (F.col("shard") == shard) & (F.col("position") >= first) & (F.col("position") < end)
        for (shard, _), (first, end) in common.items()
    ]
    return rows.where(reduce(Column.__or__, inside, F.lit(False)))


def _difference() -> Column:
    columns = F.array(
        *(F.when(~F.col(f"journal.{name}").eqNullSafe(F.col(f"archive.{name}")), F.lit(name)) for name in COMPARED)
    )
    return (
        F.when(F.col("archive").isNull(), F.lit("not in the archive"))
        .when(F.col("journal").isNull(), F.lit("not in the journal"))
        .otherwise(F.concat(F.lit("differs in "), F.array_join(columns, ", ")))
    )

"""Rows of journal or archive as publications again: selection, order and names."""

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from ropewalk.model.errors import UserMistake

COLUMNS = ("stream", "value", "exclude_socket", "broadcast_type", "timestamp", "shard", "position")


def chosen(rows: DataFrame, pattern: str = "", since: str = "", until: str = "") -> DataFrame:
    """Publications of streams that match as a whole, from a time on, up to before a time (ISO, UTC)."""
    kept = rows.where(F.col("event") == "publish")
    if pattern:
        kept = kept.where(F.col("stream").rlike(_whole(pattern)))
    if since:
        kept = kept.where(F.col("timestamp") >= F.lit(since).cast("timestamp"))
    if until:
        kept = kept.where(F.col("timestamp") < F.lit(until).cast("timestamp"))
    return kept


def check_expressions(spark: SparkSession, pattern: str, match: str, to: str) -> None:
    """Raises UserMistake for regular expressions that Java, whose they are, does not read, and for groups that are not there.

    Expressions of constants are computed while a query is planned: nothing is read and no task runs if they fail.
    """
    nothing = F.lit("")
    _check(spark, nothing.rlike(_whole(pattern)), f"pattern is not a regular expression: {pattern!r}")
    _check(spark, nothing.rlike(match), f"match is not a regular expression: {match!r}")
    # The empty alternative matches everywhere, and groups are only resolved on a match.
    _check(spark, F.regexp_replace(nothing, f"{match}|", to), f"to names a group that match has not: {to!r}")


def _check(spark: SparkSession, computed: Column, mistake: str) -> None:
    try:
        spark.range(1).select(computed).first()
    except PySparkException as error:
        raise UserMistake(f"[pipeline.replay] {mistake}") from error


def _whole(pattern: str) -> str:
    return f"^(?:{pattern})$"


def renamed(rows: DataFrame, match: str, to: str) -> DataFrame:
    """Streams under new names: what `match` finds becomes `to`, with $1 … for its groups. No `match`, no change."""
    return rows.withColumn("stream", F.regexp_replace("stream", match, to)) if match else rows


def in_order(rows: DataFrame, parts: int) -> DataFrame:
    """As they were registered, cut into `parts`. Within a shard positions are kept in order also where its clock went back."""
    before = Window.partitionBy("shard").orderBy("position").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    order = ("reached", "shard", "position")
    timed = rows.withColumn("reached", F.max("timestamp").over(before))
    return timed.repartitionByRange(parts, *order).sortWithinPartitions(*order).select(*COLUMNS)

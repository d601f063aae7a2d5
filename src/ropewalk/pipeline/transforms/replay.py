"""Rows of journal or archive as publications again: which of them, in which order, under which names."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

COLUMNS = ("stream", "value", "exclude_socket", "broadcast_type", "timestamp", "shard", "position")


def chosen(rows: DataFrame, pattern: str = "", since: str = "", until: str = "") -> DataFrame:
    """Publications of streams that match as a whole, from a time on, up to before a time (ISO, UTC)."""
    kept = rows.where(F.col("event") == "publish")
    if pattern:
        kept = kept.where(F.col("stream").rlike(f"^(?:{pattern})$"))
    if since:
        kept = kept.where(F.col("timestamp") >= F.lit(since).cast("timestamp"))
    if until:
        kept = kept.where(F.col("timestamp") < F.lit(until).cast("timestamp"))
    return kept


def renamed(rows: DataFrame, match: str, to: str) -> DataFrame:
    """Streams under new names: what `match` finds becomes `to`, in which $1 … are its groups. No `match`, no change."""
    return rows.withColumn("stream", F.regexp_replace("stream", match, to)) if match else rows


def in_order(rows: DataFrame, parts: int) -> DataFrame:
    """As they were registered, cut into `parts`. Within a shard positions are kept in order also where its clock went back."""
    before = Window.partitionBy("shard").orderBy("position").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    order = ("reached", "shard", "position")
    timed = rows.withColumn("reached", F.max("timestamp").over(before))
    return timed.repartitionByRange(parts, *order).sortWithinPartitions(*order).select(*COLUMNS)

"""`rollup`: figures by stream and minute, in a table that every batch corrects.

Each batch is added up by itself and joined to the minutes it touches, so that rows which come late count like any others. Who
listens is carried from batch to batch, for sessions say so only when it changes.
"""

import datetime
from typing import Annotated

import msgspec
from msgspec import Meta
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ropewalk.pipeline.config import seconds
from ropewalk.pipeline.context import Context, StreamOptions
from ropewalk.pipeline.registry import job
from ropewalk.pipeline.tables import JobTable, query_id
from ropewalk.pipeline.transforms.audience import COLUMNS, SCHEMA, intervals, remaining
from ropewalk.pipeline.transforms.rollup import combined, minutely, newest, timed

AUDIENCE = "-audience"
"""Behind the directory of the table: that of the subscriptions that go on, by which the next batch knows who listens."""


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
    return spark.createDataFrame([], SCHEMA) if table is None else spark.createDataFrame(table.select(COLUMNS))

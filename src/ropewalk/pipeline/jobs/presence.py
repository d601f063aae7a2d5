"""`presence`: how many members each stream had, at most and at last, minute by minute.

The moves that were read are kept in a table of their own, and the figures of the streams that a batch touches are computed from
all of them: the result is the same however the journal was split into batches.
"""

from typing import Annotated

from msgspec import Meta
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ropewalk.pipeline.context import Context, StreamOptions
from ropewalk.pipeline.registry import job
from ropewalk.pipeline.tables import JobTable, query_id
from ropewalk.pipeline.transforms.presence import figures, moves, since

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

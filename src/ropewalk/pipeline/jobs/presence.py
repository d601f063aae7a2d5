"""`presence`: how many members each stream had, at most and at last, minute by minute."""

from typing import Annotated

from msgspec import Meta
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ropewalk.pipeline.context import Context
from ropewalk.pipeline.registry import StreamOptions, job
from ropewalk.pipeline.tables import JobTable, query_id
from ropewalk.pipeline.transforms.presence import peaks

KEYS = ("date", "minute", "stream")


class PresenceOptions(StreamOptions, frozen=True, kw_only=True):
    table: Annotated[str, Meta(description="Directory of the table; empty takes one in `state_dir`.")] = ""


@job("presence", "record the peak of members by stream and minute", PresenceOptions)
def presence(context: Context, options: PresenceOptions) -> DataStreamWriter:
    root, checkpoint = options.table or context.table, context.checkpoint(options)

    def take(rows: DataFrame, batch: int) -> None:
        table = JobTable(root, query_id(checkpoint), ["date"])
        if table.has(batch):
            return
        # A stream may come twice with the same minute only in different batches, so that one row for each key is left.
        figures = (
            rows.groupBy(*KEYS).agg(*(F.max(name).alias(name) for name in ("peak", "members", "joins", "leaves"))).toArrow()
        )
        if figures.num_rows:
            table.replace(batch, figures, KEYS)

    found = peaks(context.journal(options, timers=True, includeValue="false"))
    return found.writeStream.outputMode("update").foreachBatch(take)

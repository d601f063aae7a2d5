"""`sessions`: a row for each connection that ended: how it began, how long it lasted, why it ended."""

from typing import Annotated

from msgspec import Meta
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ropewalk.pipeline.config import seconds
from ropewalk.pipeline.context import Context, StreamOptions
from ropewalk.pipeline.registry import job
from ropewalk.pipeline.tables import Appending
from ropewalk.pipeline.transforms.sessions import connections


class SessionsOptions(StreamOptions, frozen=True, kw_only=True):
    vanished_after: Annotated[
        str, Meta(description="A session without rows for this time has ended. Idle sessions write no rows.")
    ] = "168h"
    table: Annotated[str, Meta(description="Directory of the table; empty takes one in `state_dir`.")] = ""


@job("sessions", "record how long sessions last, with reconnects and restores", SessionsOptions)
def sessions(context: Context, options: SessionsOptions) -> DataStreamWriter:
    sink = Appending(options.table or context.table, context.checkpoint(options))
    ended = connections(context.journal(options, timers=True, includeValue="false"), seconds(options.vanished_after))
    return ended.writeStream.outputMode("append").foreachBatch(sink.take)

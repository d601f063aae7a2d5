"""`derive`: a stream computed from others, by a SQL text or a Python function, and published back exactly once."""

from collections.abc import Callable
from importlib import import_module
from typing import Annotated

from msgspec import Meta
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.context import Context, StreamOptions
from ropewalk.pipeline.registry import job
from ropewalk.pipeline.supervision import error_summary
from ropewalk.pipeline.tables import query_id


class DeriveOptions(StreamOptions, frozen=True, kw_only=True):
    trigger: str = "100ms"
    sql: Annotated[str, Meta(description="A query over the table `source`.")] = ""
    function: Annotated[str, Meta(description="`module:function`, from DataFrame to DataFrame, instead of `sql`.")] = ""
    stream: Annotated[str, Meta(description="Where results go; empty takes the result's column `stream`.")] = ""
    delivery: Annotated[str, Meta(description="`transactional`, or `keyed` by the source's position.")] = "transactional"
    watermark: Annotated[str, Meta(description="How late rows may come to a window; needed to aggregate.")] = ""
    output_mode: Annotated[
        str, Meta(description="`append`: a window once, when it is over; `update`: it comes with every batch that changed it.")
    ] = "append"


@job("derive", "compute a stream from others and publish it back, exactly once", DeriveOptions)
def derive(context: Context, options: DeriveOptions) -> DataStreamWriter:
    rows = source(context.journal(options))
    if options.stream:
        # What it publishes comes back in the journal, and must not be its own source.
        rows = rows.where(F.col("stream") != options.stream)
    if options.watermark:
        rows = rows.withWatermark("timestamp", options.watermark)
    result = publications(_result(context, options, rows), options.stream)
    if options.delivery == "keyed" and "uid" not in result.columns:
        raise UserMistake("delivery keyed needs the column `at` (or `uid`) in the result: SELECT at, … FROM source")
    publishing = context.publishing() | {"delivery": options.delivery}
    if options.output_mode == "update":
        return result.writeStream.outputMode("update").foreachBatch(Updates(publishing, context.checkpoint(options)).take)
    if options.output_mode != "append":
        raise UserMistake(f"[pipeline.derive] output_mode is append or update, not {options.output_mode!r}")
    return result.writeStream.format("ropewalk").outputMode("append").options(**publishing)


class Updates:
    """Publishes what each batch changed. Spark gives changes to no sink that is written in Python, but to a function."""

    def __init__(self, publishing: dict[str, str], checkpoint: str) -> None:
        self._publishing = publishing
        self._checkpoint = checkpoint

    def take(self, rows: DataFrame, batch: int) -> None:
        write = rows.write.format("ropewalk").mode("append").options(**self._publishing)
        if self._publishing["delivery"] != "keyed":
            write = write.options(txnAppId=query_id(self._checkpoint), txnVersion=batch)
        write.save()


def _result(context: Context, options: DeriveOptions, rows: DataFrame) -> DataFrame:
    if bool(options.sql) == bool(options.function):
        raise UserMistake("[pipeline.derive] needs sql or function, one of them")
    if options.function:
        return _function(options.function)(rows)
    try:
        # A view of the query's own session, so that two runs do not see each other's.
        rows.createOrReplaceTempView(SOURCE)
        return rows.sparkSession.sql(options.sql)
    except PySparkException as error:
        raise UserMistake(f"[pipeline.derive] sql: {error_summary(error)}") from error


def _function(name: str) -> Callable[[DataFrame], DataFrame]:
    module, _, attribute = name.partition(":")
    try:
        found: Callable[[DataFrame], DataFrame] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserMistake(f"[pipeline.derive] function is written module:function and must be there: {error}") from error
    return found


SOURCE = "source"
"""What a SQL text calls its table."""

COLUMNS = ("stream", "epoch", "offset", "timestamp", "text", "at", "uid", "producer")


def source(rows: DataFrame) -> DataFrame:
    """Publications for a query to read: `text` is the payload, `at` the position as one text."""
    published = rows.where(F.col("event") == "publish")
    return published.withColumns({"text": F.col("value").cast("string"), "at": position()}).select(*COLUMNS)


def position() -> Column:
    return F.concat_ws(":", "stream", "epoch", F.col("offset").cast("string"))


def publications(result: DataFrame, stream: str) -> DataFrame:
    """The result as the sink wants it: `stream`, `value` as JSON, and as `uid` the source's position with the number `n`.

    A result with a column `value` gives its JSON itself; of any other the row as a whole is the JSON.
    """
    own = ("stream", "uid", "at", "n", "value")
    names = result.columns
    payload = [name for name in names if name not in own]
    columns = {
        "stream": F.col("stream") if "stream" in names and not stream else F.lit(stream),
        "value": F.col("value").cast("string") if "value" in names else F.to_json(F.struct(*payload)),
    }
    if "at" in names:
        number = F.col("n").cast("string") if "n" in names else F.lit("0")
        columns["uid"] = F.concat_ws(":", F.col("at"), number)
    elif "uid" in names:
        columns["uid"] = F.col("uid")
    return result.select(*(column.alias(name) for name, column in columns.items()))

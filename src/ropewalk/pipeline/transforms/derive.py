"""A stream out of others: the columns for a query, and the publication of its results."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

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

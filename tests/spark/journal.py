"""Shared by the Spark tests: publishing, and reading the same streams through Spark."""

import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ropewalk.pipeline.batch_plan import FULL
from tests.server import RunningServer

FLAGS = ("--public", "--history_limit", "100000")

Position = tuple[str, str, int]
"""Stream, epoch, offset."""


def call(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})) as answer:
        return json.loads(answer.read())


def publish_all(server: RunningServer, messages: Sequence[tuple[str, object]]) -> list[Position]:
    """Publish (stream, data) in this order. Returns the positions from the server."""
    found: list[Position] = []
    for start in range(0, len(messages), 200):
        drafts = [{"stream": stream, "data": json.dumps(data)} for stream, data in messages[start : start + 200]]
        answer = call(f"{server.url}/api/publish", drafts)
        found += [(item["stream"], item["epoch"], item["offset"]) for item in answer["publications"]]
    return found


def kept(server: RunningServer, stream: str) -> list[Any]:
    """All messages of a stream in order, read over HTTP."""
    found: list[Any] = []
    after: int | None = 0
    while after is not None:
        page = call(f"{server.url}/api/streams/{stream}/history?after={after}&limit=1000")
        found += [message["message"] for message in page["messages"]]
        after = page["next"]
    return found


def batch(spark: SparkSession, server: RunningServer, **options: object) -> DataFrame:
    reader = spark.read.format("ropewalk").option("url", server.url)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def stream(spark: SparkSession, server: RunningServer, **options: object) -> DataFrame:
    reader = spark.readStream.format("ropewalk").option("url", server.url).option("startingOffsets", "earliest")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def to_parquet(frame: DataFrame, home: Path) -> StreamingQuery:
    """Append all available rows to the files of `home`, and wait for the end of the query."""
    writer = frame.writeStream.format("parquet").option("path", str(home / "rows"))
    return finish(writer.option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start())


def finish(query: StreamingQuery) -> StreamingQuery:
    """Wait for the end of the query. Raises its error."""
    query.awaitTermination()
    return query


def batch_sizes(query: StreamingQuery) -> list[int]:
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def assert_limited(sizes: Sequence[int], rows: int, limit: int) -> None:
    """All rows were read, in batches that are nearly full and not over the limit."""
    assert sum(sizes) == rows
    assert all(FULL * limit <= size <= limit for size in sizes[:-1])
    assert sizes[-1] <= limit


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had crashed after the commit of the sink and before that of Spark."""
    last = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)

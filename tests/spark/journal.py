"""What the Spark tests share: publishing, and the same streams read through Spark."""

import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ropewalk.pipeline.cutting import FULL
from tests.server import RunningServer

FLAGS = ("--public", "--history_limit", "100000")

Position = tuple[str, str, int]
"""Stream, epoch, offset."""


def call(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})) as answer:
        return json.loads(answer.read())


def publish_all(server: RunningServer, messages: Sequence[tuple[str, object]]) -> list[Position]:
    """Publish (stream, data) in this order; returns the positions the server gave."""
    found: list[Position] = []
    for start in range(0, len(messages), 200):
        drafts = [{"stream": stream, "data": json.dumps(data)} for stream, data in messages[start : start + 200]]
        answer = call(f"{server.url}/api/publish", drafts)
        found += [(item["stream"], item["epoch"], item["offset"]) for item in answer["publications"]]
    return found


def kept(server: RunningServer, stream: str) -> list[Any]:
    """Everything published to a stream, in order, as an HTTP reader sees it."""
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
    """Everything there is now, appended to the files of `home`; the query ends by itself."""
    writer = frame.writeStream.format("parquet").option("path", str(home / "rows"))
    return finish(writer.option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start())


def finish(query: StreamingQuery) -> StreamingQuery:
    """Wait for its end; raises what it failed with."""
    query.awaitTermination()
    return query


def batch_sizes(query: StreamingQuery) -> list[int]:
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def assert_limited(sizes: Sequence[int], rows: int, limit: int) -> None:
    """All rows came, in batches that are full, as far as they are cut at one time, and not over the limit."""
    assert sum(sizes) == rows
    assert all(FULL * limit <= size <= limit for size in sizes[:-1])
    assert sizes[-1] <= limit


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had crashed after the sink committed and before Spark noted it."""
    last = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)

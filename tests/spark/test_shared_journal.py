"""The journal of a cluster: Spark reads the messages of all nodes once, at the positions of the clients, also after the
recording node was killed. Messages of Spark reach every node once."""

import json
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.server import RunningServer, running_server
from tests.services import nats_server, redis_server
from tests.spark.journal import FLAGS, batch, call, finish, forget_last_commit, kept, publish_all, stream

pytestmark = pytest.mark.tier("all")

WAIT_SECONDS = 60


@contextmanager
def redis_flags() -> Iterator[tuple[str, ...]]:
    with redis_server() as redis:
        yield ("--broker", "redis", "--redis_url", redis.url)


@contextmanager
def nats_flags() -> Iterator[tuple[str, ...]]:
    with nats_server() as nats:
        yield ("--broker", "nats", "--nats_servers", nats.url)


@pytest.fixture(params=[redis_flags, nats_flags], ids=["redis", "nats"])
def flags(request: pytest.FixtureRequest) -> Iterator[tuple[str, ...]]:
    with request.param() as found:
        yield (*FLAGS, *found)


def wait_until_recording(server: RunningServer) -> None:
    """Messages from before the first recorder of a cluster are not recorded."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            call(f"{server.url}/health")
            return
        except urllib.error.HTTPError:
            assert time.monotonic() < deadline, server.log()
            time.sleep(0.05)


def wait_until_recorded(spark: SparkSession, server: RunningServer, pattern: str, count: int) -> list[tuple[str, str, int]]:
    """The journal is a little behind the broker."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        rows = batch(spark, server, subscribePattern=pattern).where("event = 'publish'").collect()
        if len(rows) >= count:
            return [(row.stream, row.epoch, row.offset) for row in rows]
        assert time.monotonic() < deadline, f"{len(rows)} of {count} rows are recorded\n{server.log()}"


def test_rows_of_all_nodes_are_read_and_rows_of_spark_are_published_once(
    spark: SparkSession, flags: tuple[str, ...], tmp_path: Path
) -> None:
    place = ("--data_dir", str(tmp_path / "data"))
    with running_server(*flags) as other:
        with running_server(*flags, *place) as recorder:
            wait_until_recording(recorder)
            published = publish_all(recorder, [(f"a/{n % 3}", n) for n in range(60)])
            published += publish_all(other, [(f"a/{n % 3}", n) for n in range(60, 120)])
            assert sorted(wait_until_recorded(spark, recorder, "a/.", 120)) == sorted(published)
            recorder.kill()
        published += publish_all(other, [(f"a/{n % 3}", n) for n in range(120, 180)])
        with running_server(*flags, *place) as again:
            published += publish_all(again, [(f"a/{n % 3}", n) for n in range(180, 200)])
            found = wait_until_recorded(spark, again, "a/.", 200)
            assert sorted(found) == sorted(published)
            assert {epoch for _, epoch, _ in found} == {epoch for _, epoch, _ in published}
            assert len({(stream, epoch) for stream, epoch, _ in found}) == 3  # no stream has a second epoch
            seen = call(f"{other.url}/api/streams/a%2F0/history")["messages"]
            values = {(row.stream, row.offset): json.loads(row.value) for row in batch(spark, again, subscribe="a/0").collect()}
            assert {("a/0", message["offset"]): message["message"] for message in seen} == values

            for _ in range(2):  # the second time the driver has not seen the commit of the batch
                publish_through_spark(spark, again, tmp_path / "checkpoint")
            assert sorted(kept(other, "out")) == list(range(200))
            assert len(wait_until_recorded(spark, again, "out", 200)) == 200


def publish_through_spark(spark: SparkSession, server: RunningServer, checkpoint: Path) -> None:
    rows = stream(spark, server, subscribePattern="a/.*").select(f.col("value").cast("string").alias("value"))
    writer = rows.writeStream.format("ropewalk").option("url", server.url).option("stream", "out")
    finish(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start())
    forget_last_commit(checkpoint)

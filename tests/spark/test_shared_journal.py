"""The journal of a cluster: what any node registered is read by Spark under the positions that clients see, once, also after
the node that records was killed. What Spark publishes reaches every node, once."""

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
    """What is registered before a cluster has its first recorder is not recorded."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            call(f"{server.url}/health")
            return
        except urllib.error.HTTPError:
            assert time.monotonic() < deadline, server.log()
            time.sleep(0.05)


def wait_until_recorded(spark: SparkSession, server: RunningServer, pattern: str, count: int) -> list[tuple[str, str, int]]:
    """The journal follows what is registered by a moment."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        rows = batch(spark, server, subscribePattern=pattern).where("event = 'publish'").collect()
        if len(rows) >= count:
            return [(row.stream, row.epoch, row.offset) for row in rows]
        assert time.monotonic() < deadline, f"{len(rows)} of {count} rows are recorded\n{server.log()}"


def test_spark_reads_what_every_node_registered_also_after_the_recorder_was_killed(
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
            assert len({(stream, epoch) for stream, epoch, _ in found}) == 3  # no stream began anew
            seen = call(f"{other.url}/api/streams/a%2F0/history")["messages"]
            values = {(row.stream, row.offset): json.loads(row.value) for row in batch(spark, again, subscribe="a/0").collect()}
            assert {("a/0", message["offset"]): message["message"] for message in seen} == values


def test_what_spark_publishes_comes_once_to_every_node(spark: SparkSession, flags: tuple[str, ...], tmp_path: Path) -> None:
    with running_server(*flags, "--data_dir", str(tmp_path / "data")) as recorder, running_server(*flags) as other:
        wait_until_recording(recorder)
        publish_all(other, [(f"in/{n % 3}", n) for n in range(150)])
        wait_until_recorded(spark, recorder, "in/.", 150)
        checkpoint = tmp_path / "checkpoint"
        for _ in range(2):  # the second time the driver does not know that the batch was committed
            rows = stream(spark, recorder, subscribePattern="in/.*").select(f.col("value").cast("string").alias("value"))
            writer = rows.writeStream.format("ropewalk").option("url", recorder.url).option("stream", "out")
            finish(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start())
            forget_last_commit(checkpoint)
        assert sorted(kept(other, "out")) == list(range(150))
        assert len(wait_until_recorded(spark, recorder, "out", 150)) == 150

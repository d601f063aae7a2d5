"""The Spark source reads the messages that clients receive, at the same positions, in any batches."""

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ropewalk.core.ring import locate_shard
from ropewalk.pipeline.options import source_options
from ropewalk.pipeline.source import ShardStreamReader
from tests.cable import Cable
from tests.server import RunningServer, running_server
from tests.spark.journal import FLAGS, assert_limited, batch, batch_sizes, call, publish_all, stream, to_parquet

WAIT_SECONDS = 60


def test_source_has_the_positions_of_a_live_client(spark: SparkSession, server: RunningServer) -> None:
    async def received() -> list[tuple[object, ...]]:
        cable = await Cable.connect(server.cable)
        await cable.welcomed()
        await cable.subscribe("equal/1")
        published = publish_all(server, [("equal/1", {"n": n, "text": "höher"}) for n in range(30)])
        frames = await cable.messages_up_to(published[-1][2])
        await cable.close()
        return [(frame["stream_id"], frame["epoch"], frame["offset"], frame["message"]) for frame in frames]

    live = asyncio.run(received())

    rows = batch(spark, server, subscribe="equal/1").where("event = 'publish'").orderBy("offset").collect()
    assert [(row.stream, row.epoch, row.offset, json.loads(row.value)) for row in rows] == live


def test_positions_of_a_shard_are_consecutive_in_the_order_of_offsets(spark: SparkSession, server: RunningServer) -> None:
    publish_all(server, [(f"dense/{n % 7}", n) for n in range(700)])

    rows = (
        batch(spark, server, maxRecordsPerPartition=150).select("partition", "position", "stream", "epoch", "offset").collect()
    )

    by_shard: dict[int, list[int]] = {}
    for row in rows:
        by_shard.setdefault(row.partition, []).append(row.position)
    assert all(sorted(found) == list(range(len(found))) for found in by_shard.values())
    ordered = sorted(
        (row for row in rows if (row.stream or "").startswith("dense/")), key=lambda row: (row.partition, row.position)
    )
    for name in {row.stream for row in ordered}:
        assert [row.offset for row in ordered if row.stream == name] == list(range(1, 101))


def test_restarted_query_resumes_with_the_new_batch_size(spark: SparkSession, server: RunningServer, tmp_path: Path) -> None:
    publish_all(server, [(f"steps/{n % 5}", n) for n in range(250)])
    rows = stream(spark, server, subscribePattern="steps/.*", maxOffsetsPerTrigger=100_000, consumer="steps")
    first = to_parquet(rows, tmp_path)
    publish_all(server, [(f"steps/{n % 5}", n) for n in range(250, 500)])
    smaller = stream(spark, server, subscribePattern="steps/.*", maxOffsetsPerTrigger=100, consumer="steps")
    second = to_parquet(smaller, tmp_path)

    found = [json.loads(row.value) for row in spark.read.parquet(str(tmp_path / "rows")).select("value").collect()]
    assert sorted(found) == list(range(500))
    assert batch_sizes(first) == [250]
    assert_limited(batch_sizes(second), 250, 100)


def test_query_progress_reports_the_lag(spark: SparkSession, server: RunningServer, tmp_path: Path) -> None:
    publish_all(server, [("lag/1", n) for n in range(40)])

    query = to_parquet(stream(spark, server, maxOffsetsPerTrigger=10_000), tmp_path)

    source = query.recentProgress[-1].sources[0]
    ends = {str(span["shard"]): span["end"] for span in call(f"{server.url}/journal")["spans"]}
    assert {shard: mark["p"] for shard, mark in json.loads(source.latestOffset).items()} == ends
    assert json.loads(source.endOffset) == json.loads(source.latestOffset)


def test_query_can_start_and_end_at_a_time(spark: SparkSession, server: RunningServer) -> None:
    publish_all(server, [(f"times/{n % 3}", n) for n in range(60)])
    boundary = int(time.time() * 1000) + 1
    while time.time() * 1000 <= boundary:
        pass
    publish_all(server, [(f"times/{n % 3}", n) for n in range(60, 90)])

    after = batch(spark, server, subscribePattern="times/.", startingTimestamp=boundary).select("value").collect()
    before = batch(spark, server, subscribePattern="times/.", endingTimestamp=boundary).select("value").collect()

    assert sorted(json.loads(row.value) for row in after) == list(range(60, 90))
    assert sorted(json.loads(row.value) for row in before) == list(range(60))


def test_pattern_matches_whole_names_and_list_selects_streams(spark: SparkSession, server: RunningServer) -> None:
    publish_all(server, [("choice/a", 1), ("choice/ab", 2), ("my-choice/a", 3)])

    by_pattern = batch(spark, server, subscribePattern="choice/.").collect()
    by_list = batch(spark, server, subscribe="choice/a, my-choice/a").collect()

    assert {row.stream for row in by_pattern} == {"choice/a"}
    assert {row.stream for row in by_list} == {"choice/a", "my-choice/a"}


def test_headers_and_values_are_optional(spark: SparkSession, server: RunningServer) -> None:
    call(f"{server.url}/api/publish", {"stream": "meta/1", "data": "1", "meta": {"broadcast_type": "notice"}})

    row = batch(spark, server, subscribe="meta/1", includeHeaders=True, includeValue=False).collect()[0]

    assert (row.headers, row.value) == ({"broadcast_type": "notice"}, None)


def test_pushed_filters_do_not_change_the_result(spark: SparkSession, server: RunningServer) -> None:
    publish_all(server, [(f"push/{n % 4}", n) for n in range(80)])
    condition = "stream = 'push/1' and offset > 5 and offset <= 15 and position >= 3"

    plain = batch(spark, server).where(condition).select("stream", "offset", "position")
    pushed = batch(spark, server, pushdown=True).where(condition).select("stream", "offset", "position")

    assert plain.count() > 0
    assert sorted(pushed.collect()) == sorted(plain.collect())
    assert "offset" in pushed._jdf.queryExecution().toString().split("Physical Plan")[1]


def test_batch_has_at_least_min_partitions_tasks(spark: SparkSession, server: RunningServer) -> None:
    publish_all(server, [(f"split/{n % 3}", n) for n in range(90)])

    frame = batch(spark, server, minPartitions=20)

    assert frame.rdd.getNumPartitions() >= 20
    assert frame.where("stream like 'split/%'").count() == 90


@pytest.mark.tier("all")
def test_replaced_journal_fails_the_query_or_adds_a_gap_row(spark: SparkSession, tmp_path: Path) -> None:
    with running_server(*FLAGS, "--data_dir", str(tmp_path / "one")) as old:
        publish_all(old, [("loss/1", n) for n in range(10)])
        to_parquet(stream(spark, old), tmp_path)
    with running_server(*FLAGS, "--data_dir", str(tmp_path / "two")) as new:
        publish_all(new, [("loss/1", n) for n in range(100, 105)])

        with pytest.raises(PySparkException, match=r"generation .* read up to position 10"):
            to_parquet(stream(spark, new), tmp_path)
        to_parquet(stream(spark, new, failOnDataLoss=False), tmp_path)

    rows = spark.read.parquet(str(tmp_path / "rows"))
    values = [json.loads(row.value) for row in rows.where("event = 'publish'").collect()]
    gaps = [json.loads(row.detail) for row in rows.where("event = 'gap'").collect()]
    assert sorted(values) == [*range(10), *range(100, 105)]
    assert {"replaced"} == {gap["reason"] for gap in gaps}
    assert 10 in {gap["first"] for gap in gaps}


@pytest.mark.tier("all")
def test_consumer_keeps_its_start_when_query_and_server_crash(spark: SparkSession, tmp_path: Path) -> None:
    flags = (*FLAGS, "--data_dir", str(tmp_path / "data"))
    with running_server(*flags) as first:
        publish_all(first, [(f"pinned/{n % 5}", n) for n in range(20)])
        options = source_options({"url": first.url, "consumer": "etl"}, streaming=True)
        begun = ShardStreamReader(options).initialOffset()
        publish_all(first, [(f"pinned/{n % 5}", n) for n in range(20, 50)])
        port = str(first.port)
        first.kill()
    with running_server(*flags, "--port", port) as second:
        publish_all(second, [(f"pinned/{n % 5}", n) for n in range(50, 60)])
        assert ShardStreamReader(options).initialOffset() == begun

        to_parquet(stream(spark, second, startingOffsets="latest", consumer="etl"), tmp_path)

    found = [json.loads(row.value) for row in spark.read.parquet(str(tmp_path / "rows")).collect()]
    assert sorted(found) == list(range(20, 60))


@pytest.mark.tier("all")
def test_consumer_advances_with_completed_batches(spark: SparkSession, tmp_path: Path) -> None:
    with running_server(*FLAGS, "--data_dir", str(tmp_path / "data")) as server:
        publish_all(server, [(f"moving/{n % 5}", n) for n in range(250)])

        query = to_parquet(stream(spark, server, maxOffsetsPerTrigger=100, consumer="etl"), tmp_path)
        (consumer,) = call(f"{server.url}/journal/consumers")["consumers"]

        assert_limited(batch_sizes(query), 250, 100)
        assert sum(consumer["lag"].values()) == 0
        publish_all(server, [("moving/0", 250)])
        (consumer,) = call(f"{server.url}/journal/consumers")["consumers"]
        assert sum(consumer["lag"].values()) == 1


def wait_for_span(server: RunningServer, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first span of the journal, once it meets the condition."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition(span := call(f"{server.url}/journal")["spans"][0]):
        assert time.monotonic() < deadline, span
        time.sleep(0.05)
    found: dict[str, Any] = span
    return found


@pytest.mark.tier("all")
def test_lost_rows_of_a_generation_fail_only_queries_that_had_not_read_them(spark: SparkSession, tmp_path: Path) -> None:
    brief = ("--durability", "memory", "--journal_shards", "1", "--journal_retention", "1s")
    flags = (*FLAGS, "--data_dir", str(tmp_path / "data"), *brief)
    with running_server(*flags) as old:
        publish_all(old, [("gone/1", n) for n in range(5)])
        to_parquet(stream(spark, old), tmp_path / "half")
        publish_all(old, [("gone/1", n) for n in range(5, 10)])
        wait_for_span(old, lambda span: span["end"] >= 10)
        to_parquet(stream(spark, old), tmp_path / "whole")
        old.kill()
    with running_server(*flags) as new:
        former = wait_for_span(new, lambda span: span["first"] >= 10)
        assert (former["first"], former["end"]) == (10, 10)
        publish_all(new, [("gone/1", n) for n in range(10, 13)])

        to_parquet(stream(spark, new), tmp_path / "whole")
        with pytest.raises(PySparkException, match=rf"generation '{former['epoch']}': positions 5 to 9 "):
            to_parquet(stream(spark, new), tmp_path / "half")

    rows = spark.read.parquet(str(tmp_path / "whole" / "rows")).collect()
    assert sorted(json.loads(row.value) for row in rows) == list(range(13))


def test_missing_positions_are_named_in_the_error(spark: SparkSession, server: RunningServer) -> None:
    publish_all(server, [("ahead/1", n) for n in range(5)])
    span = call(f"{server.url}/journal")["spans"][0]
    beyond = json.dumps({"0": {"e": span["epoch"], "p": span["end"]}})
    further = json.dumps({"0": {"e": span["epoch"], "p": span["end"] + 3}})
    options = {"assign": 0, "startingOffsets": beyond, "endingOffsets": further}

    with pytest.raises(
        PySparkException, match=rf"shard 0, generation '{span['epoch']}': positions {span['end']} to {span['end'] + 2} "
    ):
        batch(spark, server, **options).count()
    gap = batch(spark, server, **options, failOnDataLoss=False).collect()[0]

    assert (gap.event, gap.partition, gap.position) == ("gap", 0, span["end"])
    assert json.loads(gap.detail)["end"] == span["end"] + 3


@pytest.mark.tier("all")
def test_query_waits_for_a_restarted_server(spark: SparkSession, tmp_path: Path) -> None:
    with running_server(*FLAGS, "--data_dir", str(tmp_path / "data")) as first:
        publish_all(first, [("patience/1", n) for n in range(20)])
        port = str(first.port)
        first.kill()
        frame = stream(spark, first, subscribe="patience/1")
        writer = frame.writeStream.format("memory").queryName("patience").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        with running_server(*FLAGS, "--data_dir", str(tmp_path / "data"), "--port", port):
            query.awaitTermination()

    assert sorted(json.loads(row.value) for row in spark.table("patience").collect()) == list(range(20))


def test_misspelt_option_gets_a_suggestion(spark: SparkSession, server: RunningServer) -> None:
    with pytest.raises(PySparkException, match="did you mean startingOffsets"):
        batch(spark, server, startingOfsets="earliest").count()


@pytest.mark.tier("all")
def test_damaged_end_of_a_journal_fails_the_query_with_its_range(spark: SparkSession, tmp_path: Path) -> None:
    flags = ("--public", "--journal_shards", "1", "--data_dir", str(tmp_path / "data"))
    with running_server(*flags) as server:
        publish_all(server, [("end/1", n) for n in range(10)])
        to_parquet(stream(spark, server), tmp_path)
        publish_all(server, [("end/1", n) for n in range(10, 15)])
        server.kill()
    (segment,) = (tmp_path / "data" / "journal" / "shard=00").glob("*.arrow")
    os.truncate(segment, segment.stat().st_size - 100)
    with running_server(*flags) as server:
        publish_all(server, [("end/1", n) for n in range(100, 105)])

        with pytest.raises(PySparkException, match=r"positions \d+ to 14 were damaged in the journal"):
            to_parquet(stream(spark, server), tmp_path)
        to_parquet(stream(spark, server, failOnDataLoss=False), tmp_path)

    rows = spark.read.parquet(str(tmp_path / "rows"))
    values = {json.loads(row.value) for row in rows.where("event = 'publish'").collect()}
    (gap,) = [json.loads(row.detail) for row in rows.where("event = 'gap'").collect()]
    assert values == {*range(gap["first"]), *range(100, 105)}
    assert (gap["reason"], gap["end"]) == ("damaged", 15)


def test_selection_without_rows_is_an_empty_frame(spark: SparkSession, server: RunningServer) -> None:
    publish_all(server, [("something", 1)])
    selections = [{"startingOffsets": "latest"}, {"startingTimestamp": "9999999999999"}, {"subscribe": "unknown"}]
    found = {str(options): batch(spark, server, **options).collect() for options in selections}
    assert found == {str(options): [] for options in selections}


def test_empty_journal_and_filter_without_shards_are_empty_frames(spark: SparkSession, tmp_path: Path) -> None:
    with running_server(*FLAGS, "--data_dir", str(tmp_path / "data")) as server:
        reader = spark.read.format("ropewalk").options(url=server.url, pushdown="true")
        assert reader.load().count() == 0
        publish_all(server, [("something", 1)])
        assert reader.load().where("partition = 99").count() == 0
        assert reader.load().count() == 1


def test_journal_can_be_a_temporary_view_but_not_a_table(spark: SparkSession, server: RunningServer) -> None:
    publish_all(server, [("tabled", 1), ("tabled", 2)])
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE journal_table USING ropewalk OPTIONS (url '{server.url}')")
    spark.sql(f"CREATE TEMPORARY VIEW journal_view USING ropewalk OPTIONS (url '{server.url}')")
    [row] = spark.sql("SELECT count(*) AS n FROM journal_view WHERE stream = 'tabled'").collect()
    assert row.n == 2


def test_shards_without_an_ending_offset_are_read_to_their_end(spark: SparkSession, server: RunningServer) -> None:
    publish_all(server, [(f"ends/{n}", n) for n in range(20)])
    ended = spark.read.format("ropewalk").options(url=server.url, endingOffsets='{"0": -2}').load()
    assert {row.partition for row in ended.where("stream LIKE 'ends/%'").collect()} == {
        locate_shard(f"ends/{n}", 16) for n in range(20)
    } - {0}

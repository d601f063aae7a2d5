"""Spark reads trimmed ranges of the journal from the archive. Without an archive, the error names the lost range."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ropewalk.cli.main import main
from ropewalk.pipeline.archive import archived_positions
from ropewalk.pipeline.tables import read_table
from tests.server import RunningServer, running_server
from tests.spark.journal import FLAGS, batch, batch_sizes, call, finish, forget_last_commit, publish_all, stream, to_parquet
from tests.waiting import wait_until

pytestmark = pytest.mark.tier("all")

ROWS = 900
TIMEOUT = 60.0
SMALL = ("--journal_segment_size", "16384")


def archive(spark: SparkSession, server: RunningServer, home: Path) -> None:
    frame = stream(spark, server, columns="journal")
    writer = frame.writeStream.format("ropewalk_archive").option("path", str(home / "archive"))
    finish(writer.option("checkpointLocation", str(home / "archive-checkpoint")).trigger(availableNow=True).start())


def longest_span(server: RunningServer) -> dict[str, Any]:
    """The span of the shard with the stream: no other has rows."""
    spans: list[dict[str, Any]] = call(f"{server.url}/journal")["spans"]
    return max(spans, key=lambda span: span["end"])


@pytest.fixture(scope="module")
def trimmed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, Path]]:
    """A server whose journal is trimmed by retention, after two thirds of it were archived."""
    home = tmp_path_factory.mktemp("tiered")
    place = ("--data_dir", str(home / "data"))
    with running_server(*FLAGS, *SMALL, *place) as first:
        publish_all(first, [("tiered/1", {"n": n, "fill": "x" * 100}) for n in range(ROWS - 300)])
        archive(spark, first, home)
        kept_from = longest_span(first)["end"]
        first.stop()
    with running_server(*FLAGS, *SMALL, *place, "--journal_retention_size", str(64 * 1024)) as second:
        wait_until(lambda: longest_span(second)["first"], second.log)
        assert longest_span(second)["first"] < kept_from
        publish_all(second, [("tiered/1", {"n": n, "fill": ""}) for n in range(ROWS - 300, ROWS)])
        second.stop()
    # Without retention, so that the journal does not change during the tests.
    with running_server(*FLAGS, *SMALL, *place) as third:
        yield third, home


def test_trimmed_rows_are_read_from_the_archive_in_order(
    spark: SparkSession, trimmed: tuple[RunningServer, Path], tmp_path: Path
) -> None:
    server, home = trimmed

    query = to_parquet(stream(spark, server, archive=home / "archive", maxOffsetsPerTrigger=400), tmp_path)

    rows = spark.read.parquet(str(tmp_path / "rows")).orderBy("partition", "position").collect()
    assert [(row.offset, json.loads(row.value)["n"]) for row in rows] == [(n + 1, n) for n in range(ROWS)]
    assert [row.position for row in rows] == list(range(ROWS))
    assert batch_sizes(query) == [400, 400, 100]


def test_start_time_before_the_journal_reads_the_archive(spark: SparkSession, trimmed: tuple[RunningServer, Path]) -> None:
    server, home = trimmed

    found = batch(spark, server, archive=home / "archive", startingTimestamp=1).count()

    assert found == ROWS


def test_error_without_an_archive_names_the_lost_positions(spark: SparkSession, trimmed: tuple[RunningServer, Path]) -> None:
    server, _ = trimmed
    span = longest_span(server)
    begin = json.dumps({str(span["shard"]): {"e": span["epoch"], "p": 0}})

    with pytest.raises(
        PySparkException, match=rf"shard {span['shard']}, .*positions 0 to {span['first'] - 1} are neither in the journal"
    ):
        batch(spark, server, startingOffsets=begin).count()
    gap, *rest = batch(spark, server, startingOffsets=begin, failOnDataLoss=False).orderBy("position").collect()

    assert json.loads(gap.detail) == {"reason": "trimmed", "epoch": span["epoch"], "first": 0, "end": span["first"]}
    assert [row.position for row in rest] == list(range(span["first"], ROWS))


def test_archive_query_resumes_after_a_crash_and_a_trimmed_batch(
    tmp_path: Path,
) -> None:
    places = ("--data_dir", str(tmp_path / "data"), "--archive_dir", str(tmp_path / "archive"))
    with running_server(*FLAGS, *SMALL, *places, "--journal_retention_size", "32KiB") as server:
        where = ["--url", server.url, "--state_dir", str(tmp_path), "--archive_dir", str(tmp_path / "archive")]
        run = ["pipeline", "run", "archive", "--available-now", "--restarts", "0", "--config_path", "", *where]
        for half in range(2):  # a single first batch would start again where the journal starts by then
            publish_all(server, [("tiered/2", {"n": n, "fill": "x" * 100}) for n in range(ROWS * half, ROWS * (half + 1))])
            assert main(run) == 0
        forget_last_commit(tmp_path / "checkpoints" / "archive" / "v1")
        wait_until(lambda: longest_span(server)["first"] > ROWS, server.log)
        published = publish_all(server, [("tiered/2", {"n": 2 * ROWS, "fill": ""})])

        assert main(run) == 0
        assert sum(archived_positions(str(tmp_path / "archive")).values()) == published[-1][2]


def test_stopped_job_resumes_from_the_archive_after_a_trim(trimmed: tuple[RunningServer, Path], tmp_path: Path) -> None:
    server, home = trimmed
    where = ["--url", server.url, "--state_dir", str(tmp_path), "--archive_dir", str(home / "archive"), "--config_path", ""]
    assert main(["pipeline", "run", "rollup", "--available-now", "--restarts", "0", *where]) == 0
    found = read_table(str(tmp_path / "tables" / "rollup"))
    assert found is not None
    assert sum(row["messages"] for row in found.to_pylist() if row["stream"] == "tiered/1") == ROWS

"""The examples with Spark."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.server import RunningServer, running_server
from tests.spark.java import PROCESS_TIMEOUT, java_home
from tests.spark.journal import FLAGS, kept, publish_all

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN_SECONDS = 600

pytestmark = [pytest.mark.tier("all"), pytest.mark.timeout(PROCESS_TIMEOUT)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Apart from the server of the other tests: the examples count the messages of streams like `sensors/0`."""
    with running_server(*FLAGS, "--data_dir", str(tmp_path_factory.mktemp("data"))) as running:
        yield running


def test_notebook_counts_messages_and_publishes_alarms(
    spark: SparkSession, server: RunningServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pipeline_notebook.py", server.url])

    runpy.run_path(str(EXAMPLES / "pipeline_notebook.py"))

    output = capsys.readouterr().out
    counted = {
        line.split("|")[1].strip(): line.split("|")[2].strip() for line in output.splitlines() if line.startswith("|sensors/")
    }
    assert counted == {"sensors/0": "34", "sensors/1": "33", "sensors/2": "33"}
    alarms = kept(server, "alarms/hot")
    assert f"{len(alarms)} hot readings published" in output
    assert alarms
    assert all(alarm["celsius"] > 35 for alarm in alarms)


def test_whole_road_ends_with_a_table_and_a_picture(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    road = runpy.run_path(str(EXAMPLES / "whole_road.py"))

    assert road["main"](["--seconds", "3", "--rate", "100", "--out", str(tmp_path / "road")]) == 0

    output = capsys.readouterr().out
    assert "the log holds" in output
    rows = [line.split() for line in output.splitlines() if line.startswith(("chat/", "orders", "payments", "sensors/"))]
    published = re.search(r"streams +6 with ([\d,]+) messages", output)
    assert published is not None, output
    assert sum(int(row[1].replace(",", "")) for row in rows) == int(published[1].replace(",", ""))
    assert (tmp_path / "road" / "messages.png").read_bytes().startswith(b"\x89PNG")


def test_declarative_pipeline_fills_its_tables_and_publishes_alarms(server: RunningServer, tmp_path: Path) -> None:
    project = shutil.copytree(EXAMPLES / "declarative_pipeline", tmp_path / "project")
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/PLACE", str(tmp_path)))
    publish_all(server, [("sensors/oven", {"celsius": degrees}) for degrees in (20, 36, 41)])
    # SPARK_TESTING makes Spark Connect use a free port.
    environ = os.environ | {"JAVA_HOME": java_home(tmp_path), "PYSPARK_PYTHON": sys.executable, "SPARK_TESTING": "1"}
    settings = {"spark.sql.catalogImplementation": "hive", "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]

    done = subprocess.run(
        [Path(sys.executable).with_name("spark-pipelines"), *words, "run"],
        cwd=project,
        env=environ | {"ROPEWALK_URL": server.url, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECONDS,
    )

    assert done.returncode == 0, done.stderr
    alarms = [alarm["celsius"] for alarm in kept(server, "alarms") if alarm["stream"] == "sensors/oven"]
    assert alarms == [36.0, 41.0]
    views = [pq.ParquetFile(path).read() for path in (project / "spark-warehouse" / "by_minute").glob("*.parquet")]
    assert sum(row["messages"] for view in views for row in view.to_pylist() if row["stream"] == "sensors/oven") == 3

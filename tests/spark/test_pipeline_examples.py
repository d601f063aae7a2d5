"""The examples that need Spark do what they say."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.server import RunningServer
from tests.spark.java import java_home
from tests.spark.journal import kept, publish_all

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN_SECONDS = 300


def test_the_notebook_publishes_counts_and_finds_the_hot_readings(
    spark: SparkSession, server: RunningServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pipeline_notebook.py", server.url])

    runpy.run_path(str(EXAMPLES / "pipeline_notebook.py"))

    said = capsys.readouterr().out
    counted = {
        line.split("|")[1].strip(): line.split("|")[2].strip() for line in said.splitlines() if line.startswith("|sensors/")
    }
    assert counted == {"sensors/0": "34", "sensors/1": "33", "sensors/2": "33"}
    alarms = kept(server, "alarms/hot")
    assert f"{len(alarms)} hot readings published" in said
    assert alarms
    assert all(alarm["celsius"] > 35 for alarm in alarms)


def test_the_whole_road_ends_with_a_table_and_a_picture(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    road = runpy.run_path(str(EXAMPLES / "whole_road.py"))

    assert road["main"](["--seconds", "3", "--rate", "100", "--out", str(tmp_path / "road")]) == 0

    said = capsys.readouterr().out
    assert "the log holds" in said
    rows = [line.split() for line in said.splitlines() if line.startswith(("chat/", "orders", "payments", "sensors/"))]
    published = re.search(r"streams +6 with ([\d,]+) messages", said)
    assert published is not None, said
    assert sum(int(row[1].replace(",", "")) for row in rows) == int(published[1].replace(",", ""))
    assert (tmp_path / "road" / "messages.png").read_bytes().startswith(b"\x89PNG")


def test_the_declarative_pipeline_fills_its_tables_and_publishes_alarms(server: RunningServer, tmp_path: Path) -> None:
    project = shutil.copytree(EXAMPLES / "declarative_pipeline", tmp_path / "project")
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/PLACE", str(tmp_path)))
    publish_all(server, [("sensors/oven", {"celsius": degrees}) for degrees in (20, 36, 41)])
    # The word makes Spark Connect take a free port instead of its usual one.
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

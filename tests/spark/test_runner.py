"""`ropewalk pipeline run`: it restarts failed jobs, reports status and metrics, and stops on request."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from ropewalk.cli.main import main
from tests.server import RunningServer, running_server
from tests.services import free_port
from tests.spark.java import FAST_START, PROCESS_TIMEOUT, START_AND_RUN_SECONDS
from tests.spark.journal import publish_all

OWN_JOBS = """
from pathlib import Path

import ropewalk.pipeline
from ropewalk.pipeline.context import BatchOptions, StreamOptions


class Options(StreamOptions, frozen=True, kw_only=True):
    home: str
    stream: str
    failures: int = 0


@ropewalk.pipeline.job("collect", "write each batch to a file", Options)
def collect(context, options):
    home = Path(options.home)

    def take(rows, batch):
        if len(list(home.glob("attempt-*"))) < options.failures:
            (home / f"attempt-{len(list(home.glob('attempt-*')))}").touch()
            raise RuntimeError("not yet")
        (home / f"batch-{batch}").write_text(str(rows.where(rows.stream == options.stream).count()))

    return context.journal(options).writeStream.foreachBatch(take)
"""


@pytest.fixture(scope="module", autouse=True)
def own_jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module with a job of the user, on the path as with PYTHONPATH."""
    home = tmp_path_factory.mktemp("modules")
    (home / "own_jobs_of_a_user.py").write_text(OWN_JOBS)
    sys.path.insert(0, str(home))
    yield
    sys.path.remove(str(home))


class Terminal:
    """The command line, with a state directory and a stream per test."""

    def __init__(self, server: RunningServer, home: Path, output: pytest.CaptureFixture[str]) -> None:
        self._server = server
        self._home = home
        self._output = output
        self.stream = f"runner/{home.name}"
        self.ended: list[int] = []

    def run(self, *words: str) -> int:
        own = [
            "--import",
            "own_jobs_of_a_user",
            "--set",
            f"collect.home={self._home}",
            "--set",
            f"collect.stream={self.stream}",
        ]
        return main(["pipeline", "run", *words, *own, "--url", self._server.url, *self._where()])

    def start(self, *words: str) -> threading.Thread:
        thread = threading.Thread(target=lambda: self.ended.append(self.run(*words)), daemon=True)
        thread.start()
        return thread

    def stop(self, *jobs: str) -> int:
        return main(["pipeline", "stop", *jobs, *self._where()])

    def status(self) -> dict[str, dict[str, Any]]:
        self._output.readouterr()
        assert main(["pipeline", "status", "--json", *self._where()]) == 0
        return {note["job"]: note for note in json.loads(self._output.readouterr().out)}

    def status_when(self, fits: Callable[[dict[str, dict[str, Any]]], bool]) -> dict[str, dict[str, Any]]:
        deadline = time.monotonic() + START_AND_RUN_SECONDS
        while not fits(found := self.status()):
            assert time.monotonic() < deadline, f"not in {START_AND_RUN_SECONDS} s: {found}"
            time.sleep(0.05)
        return found

    def batches(self) -> int:
        return sum(int(path.read_text()) for path in self._home.glob("batch-*"))

    def _where(self) -> list[str]:
        return ["--state_dir", str(self._home / "state"), "--config_path", ""]


@pytest.fixture
def terminal(spark: SparkSession, server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(server, tmp_path, capsys)


@pytest.mark.tier("all")
def test_failed_job_is_restarted_and_resumes(terminal: Terminal, server: RunningServer) -> None:
    publish_all(server, [(terminal.stream, n) for n in range(20)])

    assert terminal.run("collect", "--available_now", "--set", "collect.failures=1") == 0

    assert terminal.batches() == 20
    note = terminal.status()["collect"]
    assert (note["condition"], note["restarts"], note["error"]) == ("done", 1, "")


@pytest.mark.tier("all")
def test_job_that_keeps_failing_fails_the_run(terminal: Terminal, server: RunningServer) -> None:
    publish_all(server, [(terminal.stream, 1)])

    assert terminal.run("collect", "--available_now", "--set", "collect.failures=9", "--restarts", "0") == 1

    note = terminal.status()["collect"]
    assert note["condition"] == "failed"
    assert "not yet" in note["error"]


@pytest.mark.tier("all")
def test_run_reports_status_and_metrics_until_it_is_stopped(terminal: Terminal, server: RunningServer) -> None:
    publish_all(server, [(terminal.stream, n) for n in range(20)])
    port = free_port()
    running = terminal.start("collect", "--set", "collect.trigger=100ms", "--metrics_port", str(port))
    first = terminal.status_when(lambda found: "collect" in found and found["collect"]["progress"]["rows"] >= 20)
    before, total = terminal.batches(), first["collect"]["progress"]["rows"]
    publish_all(server, [(terminal.stream, n) for n in range(7)])

    found = terminal.status_when(
        lambda found: found["collect"]["progress"]["rows"] >= total + 7 and terminal.batches() == before + 7
    )
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        page = answer.read().decode()
    assert terminal.run("collect") == 2, "a checkpoint has one driver"
    assert terminal.stop("collect") == 0
    running.join(START_AND_RUN_SECONDS)

    assert found["collect"]["condition"] == "running"
    assert set(found["collect"]["progress"]["lag"].values()) == {0}
    metrics = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert metrics["ropewalk_pipeline_running", "collect"] == 1
    assert metrics["ropewalk_pipeline_rows_total", "collect"] >= 27
    assert metrics["ropewalk_pipeline_lag_rows", "collect", "0"] == 0
    assert terminal.ended == [0]
    assert terminal.status()["collect"]["condition"] == "stopped"


@pytest.mark.tier("all")
@pytest.mark.timeout(PROCESS_TIMEOUT)
def test_interrupted_run_stops_in_order(terminal: Terminal, server: RunningServer, tmp_path: Path) -> None:
    publish_all(server, [(terminal.stream, 1)])
    (tmp_path / "ropewalk.toml").write_text(FAST_START)
    words = ["pipeline", "run", "archive", "--url", server.url, "--state_dir", str(tmp_path / "state")]
    with subprocess.Popen(
        [sys.executable, "-m", "ropewalk", *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            terminal.status_when(lambda found: "archive" in found and found["archive"]["condition"] == "running")
            process.send_signal(signal.SIGINT)
            _, output = process.communicate(timeout=START_AND_RUN_SECONDS)
        finally:
            process.kill()

    assert process.returncode == 130, output
    assert "archive  stopped" in output
    assert terminal.status()["archive"]["condition"] == "stopped"


def children(pid: int, name: str) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in found.splitlines() if line.split()[1] == name]


@pytest.mark.tier("all")
@pytest.mark.timeout(PROCESS_TIMEOUT)
def test_killed_jvm_is_replaced_for_all_jobs_and_killed_driver_leaves_none(
    terminal: Terminal, server: RunningServer, tmp_path: Path
) -> None:
    def all_jobs(fits: Callable[[dict[str, Any]], bool]) -> dict[str, dict[str, Any]]:
        return terminal.status_when(lambda found: found.keys() == jobs and all(map(fits, found.values())))

    jobs = {"archive", "rollup", "presence"}
    publish_all(server, [(terminal.stream, 1)])
    (tmp_path / "ropewalk.toml").write_text(FAST_START)
    words = ["pipeline", "run", *jobs, "--url", server.url, "--state_dir", str(tmp_path / "state")]
    sets = [word for job in jobs for word in ("--set", f"{job}.trigger=100ms")]
    command = [sys.executable, "-m", "ropewalk", *words, *sets]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log) as process,
    ):
        try:
            all_jobs(lambda note: note["progress"]["rows"] > 0)
            [jvm] = children(process.pid, "java")
            os.kill(jvm, signal.SIGKILL)
            restarted = all_jobs(lambda note: note["restarts"] > 0 and note["condition"] == "running")
            publish_all(server, [(terminal.stream, 2)])
            all_jobs(lambda note: note["progress"]["rows"] > restarted[note["job"]]["progress"]["rows"])
            [jvm] = children(process.pid, "java")
        finally:
            process.kill()
    output = (tmp_path / "log").read_text()
    assert "Spark's JVM has ended" in output
    # Workers may print errors of their own: on a slow machine Spark gives one up that takes ten seconds to connect.
    assert "py4j/" not in output
    assert "accumulators.py" not in output
    deadline = time.monotonic() + START_AND_RUN_SECONDS
    while Path(f"/proc/{jvm}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    note = terminal.status()["archive"]
    assert (note["condition"], note["pid"]) == ("lost", 0), "a dead process has no pid in the status"


def test_server_without_a_journal_is_reported_before_spark_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_server("--public") as bare:
        assert Terminal(bare, tmp_path, capsys).run("collect") == 2
    assert "start the server with --data_dir" in capsys.readouterr().err


def test_wrong_token_is_reported_before_spark_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_server("--noauth", "--secret", "s", "--data_dir", str(tmp_path / "data")) as closed:
        assert Terminal(closed, tmp_path, capsys).run("collect", "--token", "wrong") == 2
    assert "refused the journal's token" in capsys.readouterr().err


@pytest.mark.tier("all")
def test_jobs_succeed_on_an_empty_journal(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_server("--public", "--data_dir", str(tmp_path / "data")) as fresh:
        assert (
            Terminal(fresh, tmp_path, capsys).run(
                "archive", "audit", "replay", "--available-now", "--set", "replay.source=journal"
            )
            == 0
        )
    output = capsys.readouterr().out
    assert "the log holds" in output
    assert "there is nothing to publish" in output


def test_invalid_pattern_is_reported(terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    assert terminal.run("collect", "--available_now", "--set", "collect.pattern=(?!x)") == 2
    assert "RE2" in capsys.readouterr().err

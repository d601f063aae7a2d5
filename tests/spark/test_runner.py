"""`ropewalk pipeline run`: it restarts failed jobs, serves metrics, and stops on a signal."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from ropewalk.cli.main import main
from tests.server import RunningServer, running_server
from tests.services import free_port
from tests.spark.java import FAST_START, PROCESS_TIMEOUT, START_AND_RUN_SECONDS
from tests.spark.journal import publish_all
from tests.waiting import wait_until

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
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(home), os.environ.get("PYTHONPATH", "")))))
        yield
    sys.path.remove(str(home))


class RunningPipeline:
    """A `pipeline run` in another process, observed by its metrics."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self._port = port
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def metric(self, name: str, *labels: str) -> float | None:
        """None before it is served."""
        with (
            suppress(OSError, urllib.error.URLError),
            urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics") as answer,
        ):
            families = text_string_to_metric_families(answer.read().decode())
            samples = [sample for family in families for sample in family.samples]
            found = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
            return found.get((f"ropewalk_pipeline_{name}", *labels))
        return None

    def rows(self, job: str) -> float:
        return self.metric("rows_total", job) or 0

    def wait_until(self, fits: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_AND_RUN_SECONDS
        while not fits():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, f"not in {START_AND_RUN_SECONDS} s: {self.log}"
            time.sleep(0.05)

    def end_by(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(START_AND_RUN_SECONDS)


class Terminal:
    """The command line, with a state directory and a stream per test."""

    def __init__(self, server: RunningServer, home: Path, output: pytest.CaptureFixture[str]) -> None:
        self._server = server
        self._home = home
        self._output = output
        self.stream = f"runner/{home.name}"

    def run(self, *words: str) -> int:
        return main(["pipeline", "run", *words, *self._own(), "--config_path", ""])

    @contextmanager
    def started(self, *words: str) -> "Iterator[RunningPipeline]":
        """A run in its own process, with metrics."""
        (self._home / "ropewalk.toml").write_text(FAST_START)
        port = free_port()
        command = [sys.executable, "-m", "ropewalk", "pipeline", "run", *words, *self._own(), "--metrics_port", str(port)]
        with (
            (self._home / "log").open("w") as log,
            subprocess.Popen(command, cwd=self._home, stdout=log, stderr=log) as process,
        ):
            try:
                yield RunningPipeline(process, port, self._home / "log")
            finally:
                process.kill()

    def last_line(self) -> str:
        """What the last run displayed at its end."""
        return self._output.readouterr().err.splitlines()[-1]

    def batches(self) -> int:
        return sum(int(path.read_text()) for path in self._home.glob("batch-*"))

    def _own(self) -> list[str]:
        sets = [
            word
            for key, value in (("home", self._home), ("stream", self.stream))
            for word in ("--set", f"collect.{key}={value}")
        ]
        where = ["--url", self._server.url, "--state_dir", str(self._home / "state")]
        return ["--import", "own_jobs_of_a_user", *sets, *where]


@pytest.fixture
def terminal(spark: SparkSession, server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(server, tmp_path, capsys)


@pytest.mark.tier("all")
def test_failed_job_is_restarted_and_resumes(terminal: Terminal, server: RunningServer) -> None:
    publish_all(server, [(terminal.stream, n) for n in range(20)])

    assert terminal.run("collect", "--available_now", "--set", "collect.failures=1") == 0

    assert terminal.batches() == 20
    line = terminal.last_line()
    assert line.startswith("collect  done ")
    assert line.endswith("  restarts 1")


@pytest.mark.tier("all")
def test_job_that_keeps_failing_fails_the_run(terminal: Terminal, server: RunningServer) -> None:
    publish_all(server, [(terminal.stream, 1)])

    assert terminal.run("collect", "--available_now", "--set", "collect.failures=9", "--restarts", "0") == 1

    line = terminal.last_line()
    assert line.startswith("collect  failed ")
    assert "not yet" in line


@pytest.mark.tier("all")
@pytest.mark.timeout(PROCESS_TIMEOUT)
def test_run_serves_metrics_until_it_is_terminated(terminal: Terminal, server: RunningServer) -> None:
    publish_all(server, [(terminal.stream, n) for n in range(20)])

    with terminal.started("collect", "--set", "collect.trigger=100ms") as run:
        run.wait_until(lambda: terminal.batches() == 20 and run.rows("collect") >= 20)
        total = run.rows("collect")
        publish_all(server, [(terminal.stream, n) for n in range(7)])
        run.wait_until(lambda: terminal.batches() == 27 and run.rows("collect") >= total + 7)
        assert run.metric("running", "collect") == 1
        assert run.metric("lag_rows", "collect", "0") == 0
        assert run.metric("silent_seconds", "collect") is not None
        assert terminal.run("collect") == 2, "a checkpoint has one driver"
        assert run.end_by(signal.SIGTERM) == 0, run.log

    assert "collect  stopped" in run.log


@pytest.mark.tier("all")
@pytest.mark.timeout(PROCESS_TIMEOUT)
def test_interrupted_run_stops_in_order(terminal: Terminal, server: RunningServer) -> None:
    publish_all(server, [(terminal.stream, 1)])

    with terminal.started("archive") as run:
        run.wait_until(lambda: run.metric("running", "archive") == 1)
        assert run.end_by(signal.SIGINT) == 130, run.log

    assert "archive  stopped" in run.log


def children(pid: int, name: str) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in found.splitlines() if line.split()[1] == name]


@pytest.mark.tier("all")
@pytest.mark.timeout(PROCESS_TIMEOUT)
def test_killed_jvm_is_replaced_for_all_jobs_and_killed_driver_leaves_none(terminal: Terminal, server: RunningServer) -> None:
    jobs = ("archive", "rollup", "presence")
    sets = [word for job in jobs for word in ("--set", f"{job}.trigger=100ms")]
    publish_all(server, [(terminal.stream, 1)])

    with terminal.started(*jobs, *sets) as run:

        def restarted(job: str) -> bool:
            return run.metric("restarts_total", job) != 0 and run.metric("running", job) == 1

        run.wait_until(lambda: all(run.rows(job) > 0 for job in jobs))
        [jvm] = children(run.process.pid, "java")
        os.kill(jvm, signal.SIGKILL)
        run.wait_until(lambda: all(map(restarted, jobs)))
        rows = {job: run.rows(job) for job in jobs}
        publish_all(server, [(terminal.stream, 2)])
        run.wait_until(lambda: all(run.rows(job) > rows[job] for job in jobs))
        [jvm] = children(run.process.pid, "java")
    assert "Spark's JVM has ended" in run.log
    # Workers may print errors of their own: on a slow machine Spark gives one up that takes ten seconds to connect.
    assert "py4j/" not in run.log
    assert "accumulators.py" not in run.log
    wait_until(lambda: not Path(f"/proc/{jvm}").exists(), "the JVM has ended")


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
    assert "nothing to publish" in output


def test_invalid_pattern_is_reported(terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    assert terminal.run("collect", "--available_now", "--set", "collect.pattern=(?!x)") == 2
    assert "RE2" in capsys.readouterr().err

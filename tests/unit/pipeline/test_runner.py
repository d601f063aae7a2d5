"""A run of jobs without Spark: its output, its locks and its metrics port."""

import socket
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.context import BatchOptions, Context, JobOptions, Place, RunSession, StreamOptions
from ropewalk.pipeline.display import Display
from ropewalk.pipeline.registry import Job
from ropewalk.pipeline.runner import PipelineRunner, RunPlan, locked
from ropewalk.testing.clock import ManualClock


class Query:
    """A finished streaming query and its writer, with the methods that a run needs."""

    isActive = False

    def __init__(self, reports: list[dict[str, Any]]) -> None:
        self.recentProgress = reports

    def exception(self) -> None:
        return None

    def trigger(self, **_: object) -> "Query":
        return self

    def queryName(self, _: str) -> "Query":
        return self

    def option(self, *_: str) -> "Query":
        return self

    def start(self) -> "Query":
        return self


class RecordedRun:
    """A run in its own directory. Records the output so far when the Spark session would start."""

    def __init__(self, home: Path) -> None:
        self.out = StringIO()
        self.seen: list[str] = []
        self.names: list[str] = []
        self._context = Context(Place("http://127.0.0.1:1", "", "", home), self._session)

    def _session(self) -> Any:
        self.seen.append(self.out.getvalue())

    def run(self, body: Callable[..., Any], options: JobOptions, port: int | None = None, available_now: bool = False) -> int:
        return self.run_all({"job": body}, options, port, available_now)

    def run_all(
        self, bodies: dict[str, Callable[..., Any]], options: JobOptions, port: int | None = None, available_now: bool = False
    ) -> int:
        self.runner = PipelineRunner(self._context, Display(ManualClock(0.0), self.out), available_now, restarts=0)
        self.names = list(bodies)
        plans = [RunPlan(name, Job(name, "", type(options), body), options) for name, body in bodies.items()]
        return self.runner.run(plans, port)

    def conditions(self) -> dict[str, str]:
        """The last one shown of each job."""
        lines = [line.split() for line in self.out.getvalue().splitlines()]
        return {words[0]: words[1] for words in lines if words[0] in self.names and "was given up" not in " ".join(words)}


@pytest.fixture
def recorded(tmp_path: Path) -> RecordedRun:
    return RecordedRun(tmp_path)


@pytest.fixture
def used_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def finish(*_: object) -> int:
    return 0


def test_port_in_use_is_rejected_before_spark_starts(recorded: RecordedRun, used_port: int) -> None:
    with pytest.raises(UserMistake, match=f"port {used_port}.*0 takes a free one"):
        recorded.run(finish, BatchOptions(every="1h"), used_port)

    assert recorded.seen == []


@pytest.mark.parametrize(("body", "options"), [(finish, BatchOptions()), (lambda *_: Query([]), StreamOptions())])
def test_finite_run_continues_without_metrics_if_the_port_is_in_use(
    recorded: RecordedRun, used_port: int, body: Callable[..., Any], options: JobOptions
) -> None:
    assert recorded.run(body, options, used_port, available_now=isinstance(options, StreamOptions)) == 0

    assert "goes on without metrics" in recorded.out.getvalue()


def test_starting_spark_is_shown(recorded: RecordedRun) -> None:
    assert recorded.run(finish, BatchOptions()) == 0

    assert recorded.seen[0] == "starting Spark …\n"
    assert recorded.conditions() == {"job": "done"}


def test_job_that_runs_from_the_same_directory_is_rejected(recorded: RecordedRun, tmp_path: Path) -> None:
    with locked(tmp_path, "job"), pytest.raises(UserMistake, match="job is already running"):
        recorded.run(finish, BatchOptions())

    assert recorded.run(finish, BatchOptions()) == 0


def test_dropped_rows_are_warned_about_once(recorded: RecordedRun) -> None:
    dropped = {"stateOperators": [{"numRowsDroppedByWatermark": 3}], "durationMs": {"addBatch": 1}, "numInputRows": 9}
    reports = [{"timestamp": f"2026-01-31T12:00:0{second}.000Z", "batchId": second, **dropped} for second in range(2)]

    assert recorded.run(lambda *_: Query(reports), StreamOptions(), available_now=True) == 0

    output = recorded.out.getvalue()
    assert output.count("later than the watermark allows") == 1
    assert "late 6" in output


def fail(*_: object) -> int:
    raise RuntimeError("no")


def mistake(*_: object) -> int:
    raise UserMistake("no such column")


def test_failed_job_does_not_keep_those_behind_it_from_running(recorded: RecordedRun) -> None:
    bodies = {"first": fail, "invalid": mistake, "last": finish}

    assert recorded.run_all(bodies, BatchOptions(), available_now=True) == 2

    assert recorded.conditions() == {"first": "failed", "invalid": "failed", "last": "done"}


def test_run_ends_with_an_error_when_a_job_is_given_up(recorded: RecordedRun) -> None:
    """Something outside can restart a run that ends, but not a job in it."""

    def endless(context: Context, _: object) -> int:
        context.stopping.wait()
        return 0

    assert recorded.run_all({"failing": fail, "endless": endless}, BatchOptions()) == 1

    assert recorded.conditions() == {"failing": "failed", "endless": "stopped"}
    assert "failing was given up" in recorded.out.getvalue()


def test_mistake_in_one_job_does_not_end_the_others(recorded: RecordedRun) -> None:
    assert recorded.run_all({"invalid": mistake, "good": finish}, BatchOptions()) == 2

    assert recorded.conditions() == {"invalid": "failed", "good": "done"}


def test_stopped_run_does_not_start_the_jobs_behind(recorded: RecordedRun) -> None:
    def stop(context: Context, _: object) -> int:
        recorded.runner.stop()
        context.stopping.wait()
        return 0

    assert recorded.run_all({"first": stop, "second": fail}, BatchOptions(), available_now=True) == 0

    assert recorded.conditions() == {"first": "stopped", "second": "stopped"}


def test_jobs_share_one_session_also_after_its_jvm_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead: list[str] = []
    made: list[Any] = []

    def make() -> Any:
        dead.clear()
        made.append(object())
        return made[-1]

    monkeypatch.setattr("ropewalk.pipeline.session.lost_jvm", lambda: "".join(dead))
    run = Context(Place("http://127.0.0.1:1", "", "", tmp_path), RunSession(make))
    jobs = [run.named("one"), run.named("other")]

    before = [job.spark for job in jobs]
    dead.append("dead")
    after = [job.spark for job in jobs]

    assert before == [made[0]] * 2
    assert after == [made[1]] * 2

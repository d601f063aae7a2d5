"""A run of jobs, without Spark: what is said when, and what is written down."""

import socket
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.board import Board
from ropewalk.pipeline.context import BatchOptions, Context, JobOptions, Place, StreamOptions
from ropewalk.pipeline.display import Display
from ropewalk.pipeline.registry import Job
from ropewalk.pipeline.runner import PipelineRunner, RunPlan
from ropewalk.testing.clock import ManualClock


class Query:
    """A streaming query that is over, and the writer that starts it: both as far as a run asks them."""

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


class Started:
    """A run in a directory of its own. What is made instead of Spark looks at the board meanwhile."""

    def __init__(self, home: Path) -> None:
        self.board = Board(home)
        self.out = StringIO()
        self.seen: list[list[str]] = []
        self._context = Context(Place("http://127.0.0.1:1", "", "", home), self._session)

    def _session(self) -> Any:
        self.seen.append([note.condition for note in self.board.notes()])

    def run(self, body: Callable[..., Any], options: JobOptions, port: int | None = None, available_now: bool = False) -> int:
        runner = PipelineRunner(self._context, self.board, Display(ManualClock(0.0), self.out), available_now)
        return runner.run([RunPlan("job", Job("job", "", type(options), body), options)], port)


@pytest.fixture
def started(tmp_path: Path) -> Started:
    return Started(tmp_path)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def done(*_: object) -> int:
    return 0


def test_a_taken_port_is_said_before_spark_starts(started: Started, taken_port: int) -> None:
    with pytest.raises(UserMistake, match=f"port {taken_port}.*0 takes a free one"):
        started.run(done, BatchOptions(every="1h"), taken_port)

    assert started.seen == []


@pytest.mark.parametrize(("body", "options"), [(done, BatchOptions()), (lambda *_: Query([]), StreamOptions())])
def test_a_run_that_ends_by_itself_goes_without_metrics_where_the_port_is_taken(
    started: Started, taken_port: int, body: Callable[..., Any], options: JobOptions
) -> None:
    assert started.run(body, options, taken_port, available_now=isinstance(options, StreamOptions)) == 0

    assert "goes on without metrics" in started.out.getvalue()


def test_while_spark_starts_it_is_said_and_written_down(started: Started) -> None:
    assert started.run(done, BatchOptions()) == 0

    assert started.seen[0] == ["starting"]
    assert started.out.getvalue().startswith("starting Spark …\n")
    assert [note.condition for note in started.board.notes()] == ["done"]


def test_rows_that_spark_dropped_are_warned_of_once(started: Started) -> None:
    dropped = {"stateOperators": [{"numRowsDroppedByWatermark": 3}], "durationMs": {"addBatch": 1}, "numInputRows": 9}
    reports = [{"timestamp": f"2026-01-31T12:00:0{second}.000Z", "batchId": second, **dropped} for second in range(2)]

    assert started.run(lambda *_: Query(reports), StreamOptions(), available_now=True) == 0

    said = started.out.getvalue()
    assert said.count("later than the watermark allows") == 1
    assert "late 6" in said

"""A run of jobs without Spark: its output, its board and its metrics port."""

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
    """A run in its own directory. Records the board when the Spark session would start."""

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


def test_starting_spark_is_shown_and_written_to_the_board(recorded: RecordedRun) -> None:
    assert recorded.run(finish, BatchOptions()) == 0

    assert recorded.seen[0] == ["starting"]
    assert recorded.out.getvalue().startswith("starting Spark …\n")
    assert [note.condition for note in recorded.board.notes()] == ["done"]


def test_dropped_rows_are_warned_about_once(recorded: RecordedRun) -> None:
    dropped = {"stateOperators": [{"numRowsDroppedByWatermark": 3}], "durationMs": {"addBatch": 1}, "numInputRows": 9}
    reports = [{"timestamp": f"2026-01-31T12:00:0{second}.000Z", "batchId": second, **dropped} for second in range(2)]

    assert recorded.run(lambda *_: Query(reports), StreamOptions(), available_now=True) == 0

    output = recorded.out.getvalue()
    assert output.count("later than the watermark allows") == 1
    assert "late 6" in output

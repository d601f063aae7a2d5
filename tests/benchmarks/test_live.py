"""The live benchmarks, run small: they end, and what they report is complete and adds up. How fast it was is not tested."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks import needs
from benchmarks.parts import PARTS, left_out
from benchmarks.report import Run
from benchmarks.sizes import QUICK
from benchmarks.storm import MISSED_BY_ALL
from ropewalk.model.extras import install
from tests.figures import ratios_of

pytestmark = pytest.mark.alone  # it measures

ROOT = Path(__file__).parents[2]
LIVE = "fanout,latency,memory,storm,connect,workers"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    output = tmp_path_factory.mktemp("benchmarks") / "quick.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", LIVE, "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return msgspec.json.decode(output.read_bytes(), type=Run)


def test_a_quick_run_reports_every_figure(run: Run) -> None:
    assert [figure.key for figure in run.figures] == ["a", "b10", "c", "d50", "d99", "e", "s", "wc", "wl", "wr"]


def test_each_figure_stands_beside_its_floor_and_their_ratio(run: Run) -> None:
    for figure in run.figures:
        assert figure.floor > 0
        assert min(ratios_of(figure)) <= figure.ratio <= max(ratios_of(figure))
        assert min(figure.rounds) <= figure.value <= max(figure.rounds)
        assert min(figure.floor_rounds) <= figure.floor <= max(figure.floor_rounds)


def test_only_figures_with_a_bar_say_whether_they_hold_it(run: Run) -> None:
    for figure in run.figures:
        assert figure.holds == (figure.bar.holds(figure.value, figure.ratio) if figure.bar else None)
    assert [figure.key for figure in run.figures if figure.bar] == ["a", "b10", "c", "s", "wc", "wl"]


def test_every_delivery_of_the_checked_rounds_was_accounted_for(run: Run) -> None:
    details = {figure.key: figure.details for figure in run.figures}
    assert details["a"]["deliveries_checked"] == QUICK.subscribers * QUICK.single_messages
    assert details["b10"]["deliveries_checked"] == QUICK.subscribers * QUICK.batched_messages


def test_after_a_storm_every_session_is_restored_and_nobody_missed_a_message_or_got_one_twice(run: Run) -> None:
    storm = next(figure.details for figure in run.figures if figure.key == "e")
    assert storm["restored"] == QUICK.storm_connections * QUICK.storm_rounds
    assert storm["not_restored"] == 0
    assert storm["missed_or_twice"] == 0
    assert storm["replayed"] >= storm["restored"] * MISSED_BY_ALL


def test_the_record_names_neither_the_host_nor_a_path(run: Run) -> None:
    text = msgspec.json.encode(run.machine).decode() + run.command
    assert str(ROOT) not in text
    assert run.command == f"python -m benchmarks --only {LIVE} --quick"
    assert run.machine.cores > 0


def test_parts_whose_extra_is_not_installed_say_so_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "find_spec", lambda module: module != "pyspark")
    absent = left_out(list(PARTS))
    assert set(absent) == {"source", "archive", "sink", "queryable", "quiet"}
    assert set(absent.values()) == {install("spark")}


def test_a_part_that_needs_several_extras_names_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "find_spec", lambda module: module != "nats")
    assert left_out(["fanout", "cluster"]) == {"cluster": install("redis", "enats")}

"""The benchmarks of a cluster, run small over a real Redis and a real NATS: what they report is complete and adds up, however
fast it was."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.report import Run
from benchmarks.sizes import QUICK
from tests.figures import ratios_of

pytestmark = pytest.mark.alone  # it measures

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    output = tmp_path_factory.mktemp("benchmarks") / "quick.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", "cluster", "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return msgspec.json.decode(output.read_bytes(), type=Run)


def test_a_quick_run_reports_every_figure_of_every_engine(run: Run) -> None:
    publishing = [f"n{engine}{way}" for engine in "mnr" for way in "1mu"]
    assert [figure.key for figure in run.figures] == [*publishing, "om", "on", "or", "pn", "pr"]


def test_each_figure_stands_beside_its_bare_client_and_their_ratio(run: Run) -> None:
    for figure in run.figures:
        assert figure.floor > 0
        assert min(ratios_of(figure)) <= figure.ratio <= max(ratios_of(figure))
        assert len(figure.rounds) == len(figure.floor_rounds) == QUICK.cluster_rounds


def test_the_bars_are_those_of_redis_and_nats(run: Run) -> None:
    bars = {figure.key: (figure.bar.sense, figure.bar.limit) for figure in run.figures if figure.bar}
    assert bars == {"nn1": (">=", 2.0), "nr1": (">=", 3.0), "on": ("<=", 3.0), "or": ("<=", 3.0)}
    for figure in run.figures:
        assert figure.holds == (figure.bar.holds(figure.value, figure.ratio) if figure.bar else None)


def test_the_work_is_what_the_bars_say(run: Run) -> None:
    details = {figure.key: figure.details for figure in run.figures}
    assert (details["nr1"]["publishers"], details["nr1"]["streams"]) == (256, 1)
    assert (details["nn1"]["publishers"], details["nn1"]["streams"]) == (64, 1)
    assert details["nr1"]["messages_a_round"] == details["nn1"]["messages_a_round"] == QUICK.cluster_messages


def test_the_record_says_with_which_clients(run: Run) -> None:
    assert {"redis", "nats-py"} <= run.machine.versions.keys()

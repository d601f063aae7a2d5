"""The benchmark of Broky, run small: it ends, and what it reports is complete and adds up, however fast it was."""

import os
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
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", "broky", "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return msgspec.json.decode(output.read_bytes(), type=Run)


def test_a_quick_run_reports_every_figure_beside_its_floor(run: Run) -> None:
    clients, trips, workers = ("tc", "tch", "tcn"), ("te50", "te99", "tx50", "txs"), ("twc", "twr")
    flows = [f"{kind}{batch}" for kind in ("tf", "tn") for batch, _ in QUICK.broky_flows]
    fans = [f"ti{batch}" for batch, _ in QUICK.broky_flows[:2]] + ["to1", f"to{QUICK.broky_batch}"]
    assert [figure.key for figure in run.figures] == sorted([*clients, *trips, *flows, *fans, *workers, "tm"])
    for figure in run.figures:
        assert figure.value > 0
        assert min(ratios_of(figure)) <= figure.ratio <= max(ratios_of(figure))


def test_the_bars_are_those_of_broky(run: Run) -> None:
    bars = {figure.key: (figure.bar.of, figure.bar.sense, figure.bar.limit) for figure in run.figures if figure.bar}
    assert bars == {
        "te50": ("ratio", "<=", 2.0),
        "te99": ("ratio", "<=", 3.0),
        "tx50": ("ratio", "<=", 4.0),
        "tc": ("value", ">=", 300_000.0),
        "tcn": ("ratio", ">=", 3.0),
        "tn1": ("ratio", ">=", 2.5),
        "tn10": ("ratio", ">=", 2.5),
        "to1": ("ratio", ">=", 1.0),
        "to100": ("ratio", ">=", 1.0),
    }


def test_every_figure_says_on_which_cores_it_was_taken(run: Run) -> None:
    allowed = os.sched_getaffinity(0)
    for figure in run.figures:
        cores = {value for name, value in figure.details.items() if name in ("core", "server_core", "load_core")}
        assert cores, figure.key
        assert cores <= allowed


def test_the_fan_out_was_read_by_everyone(run: Run) -> None:
    details = {figure.key: figure.details for figure in run.figures}
    assert details["to1"]["deliveries_checked"] == QUICK.subscribers * QUICK.single_messages
    assert details["to100"]["deliveries_checked"] == QUICK.subscribers * QUICK.batched_messages

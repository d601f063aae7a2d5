"""The benchmark of Broky as a quick run: it ends, and its report is complete and consistent. Speed is not tested."""

import os

import pytest

from benchmarks.report import Run
from benchmarks.sizes import QUICK
from tests.benchmarks.quick_run import assert_ratios_are_consistent, details_of, quick_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return quick_run("broky", tmp_path_factory)


def test_quick_run_reports_all_figures_with_their_floor_and_ratio(run: Run) -> None:
    clients, trips, workers = ("tc", "tch", "tcn"), ("te50", "te99", "tx50", "txs"), ("twc", "twr")
    flows = [f"{kind}{batch}" for kind in ("tf", "tn") for batch, _ in QUICK.broky_flows]
    fans = [f"ti{batch}" for batch, _ in QUICK.broky_flows[:2]] + ["to1", f"to{QUICK.broky_batch}"]
    assert [figure.key for figure in run.figures] == sorted([*clients, *trips, *flows, *fans, *workers, "tm"])
    assert_ratios_are_consistent(run)
    assert [figure.key for figure in run.figures if figure.value <= 0] == []


def test_bars_of_broky_are_set(run: Run) -> None:
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


def test_figures_report_the_cores_of_their_processes(run: Run) -> None:
    allowed = os.sched_getaffinity(0)
    for figure in run.figures:
        cores = {value for name, value in figure.details.items() if name in ("core", "server_core", "load_core")}
        assert cores, figure.key
        assert cores <= allowed


def test_all_deliveries_of_the_fan_out_are_counted(run: Run) -> None:
    details = details_of(run)
    assert details["to1"]["deliveries_checked"] == QUICK.subscribers * QUICK.single_messages
    assert details["to100"]["deliveries_checked"] == QUICK.subscribers * QUICK.batched_messages

"""The benchmarks of a cluster as a quick run over a real Redis and a real NATS: the report is complete and consistent."""

import pytest

from benchmarks.report import Run
from benchmarks.sizes import QUICK
from tests.benchmarks.quick_run import assert_bars_are_checked, assert_ratios_are_consistent, details_of, quick_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return quick_run("cluster", tmp_path_factory)


def test_quick_run_reports_all_figures_of_each_backend(run: Run) -> None:
    publishing = [f"n{engine}{way}" for engine in "mnr" for way in "1mu"]
    assert [figure.key for figure in run.figures] == [*publishing, "om", "on", "or", "pn", "pr"]
    assert_ratios_are_consistent(run)
    for figure in run.figures:
        assert len(figure.rounds) == len(figure.floor_rounds) == QUICK.cluster_rounds


def test_bars_of_redis_and_nats_are_set_and_checked(run: Run) -> None:
    bars = {figure.key: (figure.bar.sense, figure.bar.limit) for figure in run.figures if figure.bar}
    assert bars == {"nn1": (">=", 2.0), "nr1": (">=", 3.0), "on": ("<=", 3.0), "or": ("<=", 3.0)}
    assert assert_bars_are_checked(run) == [*bars]


def test_numbers_of_publishers_and_messages_are_those_of_the_bars(run: Run) -> None:
    details = details_of(run)
    assert (details["nr1"]["publishers"], details["nr1"]["streams"]) == (256, 1)
    assert (details["nn1"]["publishers"], details["nn1"]["streams"]) == (64, 1)
    assert details["nr1"]["messages_a_round"] == details["nn1"]["messages_a_round"] == QUICK.cluster_messages


def test_record_has_the_versions_of_the_clients(run: Run) -> None:
    assert {"redis", "nats-py"} <= run.machine.versions.keys()

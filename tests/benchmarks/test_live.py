"""The live benchmarks as a quick run: they end, and their report is complete and consistent. Speed is not tested."""

import pytest

from benchmarks import needs
from benchmarks.parts import PARTS, left_out
from benchmarks.report import Run
from benchmarks.sizes import QUICK
from benchmarks.storm import MISSED_BY_ALL
from ropewalk.model.extras import install_command
from tests.benchmarks.quick_run import ROOT, assert_bars_are_checked, assert_ratios_are_consistent, details_of, quick_run

LIVE = "fanout,latency,neighbour,memory,storm,connect,workers,publish"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    pytest.importorskip("httptools")  # of the part `publish`
    return quick_run(LIVE, tmp_path_factory)


def test_quick_run_reports_all_figures_with_their_floor_and_ratio(run: Run) -> None:
    assert [figure.key for figure in run.figures] == [
        "a",
        "b10",
        "c",
        "d50",
        "d99",
        "e",
        "q",
        "s",
        "u50",
        "u99",
        "wc",
        "wl",
        "wr",
    ]
    assert_ratios_are_consistent(run)
    for figure in run.figures:
        assert min(figure.rounds) <= figure.value <= max(figure.rounds)
        assert min(figure.floor_rounds) <= figure.floor <= max(figure.floor_rounds)
    publish = next(figure for figure in run.figures if figure.key == "q")
    assert len(publish.rounds) == len(publish.floor_rounds) == QUICK.publish_rounds


def test_figures_with_a_bar_report_whether_they_hold_it(run: Run) -> None:
    assert assert_bars_are_checked(run) == ["a", "b10", "c", "q", "s", "u99", "wc", "wl"]


def test_all_deliveries_of_the_checked_rounds_are_counted(run: Run) -> None:
    details = details_of(run)
    assert details["a"]["deliveries_checked"] == QUICK.subscribers * QUICK.single_messages
    assert details["b10"]["deliveries_checked"] == QUICK.subscribers * QUICK.batched_messages


def test_storm_restores_all_sessions_without_missing_or_duplicate_messages(run: Run) -> None:
    storm = details_of(run)["e"]
    assert storm["restored"] == QUICK.storm_connections * QUICK.storm_rounds
    assert storm["not_restored"] == 0
    assert storm["missed_or_twice"] == 0
    assert storm["replayed"] >= storm["restored"] * MISSED_BY_ALL


def test_record_contains_neither_the_host_name_nor_a_path(run: Run) -> None:
    assert str(ROOT) not in f"{run.machine}{run.command}"
    assert run.command == f"python -m benchmarks --only {LIVE} --quick"
    assert run.machine.cores > 0


def test_parts_without_their_extra_are_left_out_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "find_spec", lambda module: module != "pyspark")
    absent = left_out(list(PARTS))
    assert set(absent) == {"source", "archive", "sink", "queryable", "quiet"}
    assert set(absent.values()) == {install_command("spark")}


def test_hint_of_a_part_names_all_of_its_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "find_spec", lambda module: module != "nats")
    assert left_out(["fanout", "cluster"]) == {"cluster": install_command("redis", "enats")}

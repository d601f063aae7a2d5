"""The benchmarks of journal, Spark and archive as a quick run: the report is complete and consistent. Speed is not tested."""

import pytest

from benchmarks.report import Figure, Run
from benchmarks.sizes import QUICK
from tests.benchmarks.quick_run import assert_bars_are_checked, assert_ratios_are_consistent, quick_run

PARTS = "journal,source,archive,sink,queryable,cold,compaction,quiet"
KEYS = ["ff1", "ff10", "fj1", "fj10", "fm1", "fm10", "g", "h", "i", "j", "k1", "k2", "kx", "l50", "l99", "m", "mr", "mx"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return quick_run(PARTS, tmp_path_factory)


@pytest.fixture
def figures(run: Run) -> dict[str, Figure]:
    return {figure.key: figure for figure in run.figures}


def test_quick_run_reports_all_figures_with_their_floor_and_ratio(run: Run) -> None:
    assert [figure.key for figure in run.figures] == KEYS
    assert_ratios_are_consistent(run)
    assert [figure.key for figure in run.figures if figure.value <= 0] == []


def test_figures_with_a_bar_report_whether_they_hold_it(run: Run) -> None:
    assert assert_bars_are_checked(run) == ["g", "h", "k1", "k2", "kx", "l99", "mr", "mx"]


def test_journal_is_compared_with_memory_and_memory_with_no_journal(figures: dict[str, Figure]) -> None:
    for batch in ("1", str(QUICK.append_batch)):
        memory = figures[f"fm{batch}"]
        assert figures[f"fj{batch}"].floor_rounds == memory.rounds
        assert figures[f"ff{batch}"].floor_rounds == memory.rounds
        assert memory.floor_rounds != memory.rounds


def test_source_and_archive_process_all_rows_in_one_batch(figures: dict[str, Figure]) -> None:
    for key in ("g", "h"):
        assert figures[key].details["rows"] == QUICK.rows
        assert figures[key].details["batches"] == 1
    assert figures["i"].details["rows"] == QUICK.sink_rows


def test_growth_of_cold_reads_is_the_ratio_of_two_figures(figures: dict[str, Figure]) -> None:
    assert figures["kx"].rounds == figures["k2"].rounds
    assert figures["kx"].floor_rounds == figures["k1"].rounds
    assert figures["k2"].details["rows"] == 2 * figures["k1"].details["rows"]


def test_compaction_rewrites_rows_repeatedly_but_not_the_whole_table_each_time(figures: dict[str, Figure]) -> None:
    details = figures["mx"].details
    assert 1 < details["floor_rewritten_for_each_added"] < details["rewritten_for_each_added"] < details["rounds"] / 2


def test_archive_query_runs_during_the_latency_measurement(figures: dict[str, Figure]) -> None:
    assert figures["l99"].details["archived"] > 0

"""The benchmarks of journal, Spark and archive, run small: what they report is complete and adds up, however fast it was."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.report import Figure, Run
from benchmarks.sizes import QUICK
from tests.figures import ratios_of

ROOT = Path(__file__).parents[2]
PARTS = "journal,source,archive,sink,queryable,cold,compaction,quiet"
KEYS = ["ff1", "ff10", "fj1", "fj10", "fm1", "fm10", "g", "h", "i", "j", "k1", "k2", "kx", "l50", "l99", "m", "mr", "mx"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    output = tmp_path_factory.mktemp("benchmarks") / "quick.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", PARTS, "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return msgspec.json.decode(output.read_bytes(), type=Run)


@pytest.fixture
def figures(run: Run) -> dict[str, Figure]:
    return {figure.key: figure for figure in run.figures}


def test_a_quick_run_reports_every_figure_and_leaves_no_part_out(run: Run) -> None:
    assert [figure.key for figure in run.figures] == KEYS
    assert run.left_out == {}


def test_each_figure_stands_beside_its_floor_and_their_ratio(run: Run) -> None:
    for figure in run.figures:
        assert figure.value > 0
        assert figure.floor > 0
        assert min(ratios_of(figure)) <= figure.ratio <= max(ratios_of(figure))


def test_only_figures_with_a_bar_say_whether_they_hold_it(run: Run) -> None:
    for figure in run.figures:
        assert figure.holds == (figure.bar.holds(figure.value, figure.ratio) if figure.bar else None)
    assert [figure.key for figure in run.figures if figure.bar] == ["g", "h", "k1", "k2", "kx", "l99", "mr", "mx"]


def test_journal_and_fsync_are_measured_against_memory_and_memory_against_no_journal(figures: dict[str, Figure]) -> None:
    for batch in ("1", str(QUICK.append_batch)):
        memory = figures[f"fm{batch}"]
        assert figures[f"fj{batch}"].floor_rounds == memory.rounds
        assert figures[f"ff{batch}"].floor_rounds == memory.rounds
        assert memory.floor_rounds != memory.rounds


def test_every_row_of_the_journal_went_through_source_and_archive_in_one_batch(figures: dict[str, Figure]) -> None:
    for key in ("g", "h"):
        assert figures[key].details["rows"] == QUICK.rows
        assert figures[key].details["batches"] == 1
    assert figures["i"].details["rows"] == QUICK.sink_rows


def test_the_growth_of_cold_reads_is_that_of_the_two_figures_before_it(figures: dict[str, Figure]) -> None:
    assert figures["kx"].rounds == figures["k2"].rounds
    assert figures["kx"].floor_rounds == figures["k1"].rounds
    assert figures["k2"].details["rows"] == 2 * figures["k1"].details["rows"]


def test_compaction_rewrote_rows_more_than_once_but_not_the_whole_table_each_time(figures: dict[str, Figure]) -> None:
    details = figures["mx"].details
    assert 1 < details["floor_rewritten_for_each_added"] < details["rewritten_for_each_added"] < details["rounds"] / 2


def test_the_archive_was_at_work_while_it_was_asked_to_be_quiet(figures: dict[str, Figure]) -> None:
    assert figures["l99"].details["archived"] > 0

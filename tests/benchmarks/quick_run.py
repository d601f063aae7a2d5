"""Quick runs of the benchmarks, and what holds for the report of each."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.report import Figure, Run

ROOT = Path(__file__).parents[2]
SECONDS = 280  # matters only where a run hangs; below the timeout of a case


def quick_run(parts: str, directories: pytest.TempPathFactory) -> Run:
    output = directories.mktemp("benchmarks") / "quick.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", parts, "--output", str(output)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return msgspec.json.decode(output.read_bytes(), type=Run)


def assert_ratios_are_consistent(run: Run) -> None:
    """Each figure has a floor, and its ratio is within those of its rounds."""
    assert run.left_out == {}
    for figure in run.figures:
        assert figure.floor > 0, figure.key
        ratios = ratios_of(figure)
        assert min(ratios) <= figure.ratio <= max(ratios), figure.key


def ratios_of(figure: Figure) -> list[float]:
    return [measured / floor for measured, floor in zip(figure.rounds, figure.floor_rounds, strict=True)]


def assert_bars_are_checked(run: Run) -> list[str]:
    """Figures with a bar report whether they hold it, others do not; returns the keys of the former."""
    for figure in run.figures:
        assert figure.holds == (figure.bar.holds(figure.value, figure.ratio) if figure.bar else None), figure.key
    return [figure.key for figure in run.figures if figure.bar]


def details_of(run: Run) -> dict[str, dict[str, float]]:
    return {figure.key: figure.details for figure in run.figures}

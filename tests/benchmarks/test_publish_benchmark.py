"""The benchmark of publishing, run small: it ends, and its figure is complete."""

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


def test_a_quick_run_measures_the_server_against_its_floor(tmp_path: Path) -> None:
    pytest.importorskip("httptools")
    output = tmp_path / "quick.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", "publish", "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = msgspec.json.decode(output.read_bytes(), type=Run).figures
    assert (found.key, len(found.rounds), len(found.floor_rounds)) == ("q", QUICK.publish_rounds, QUICK.publish_rounds)
    assert found.value > 0
    assert min(ratios_of(found)) <= found.ratio <= max(ratios_of(found))
    assert found.bar is not None

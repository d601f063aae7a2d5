"""The figures in the README agree with the recorded benchmark run."""

import msgspec

from benchmarks.__main__ import LATEST
from benchmarks.readme import BLOCK, README, block
from benchmarks.report import Run


def test_the_readme_shows_the_last_full_run() -> None:
    found = BLOCK.search(README.read_text())
    assert found is not None
    expected = block(msgspec.json.decode(LATEST.read_bytes(), type=Run))
    assert found[0] == f"{found[1]}{expected}\n{found[2]}", "write it with python -m benchmarks.readme"

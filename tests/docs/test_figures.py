"""The figures on the pages agree with the recorded benchmark run."""

from pathlib import Path

import msgspec
import pytest

from benchmarks.__main__ import LATEST
from benchmarks.pages import BLOCK, PAGES, filled
from benchmarks.report import Run


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_shows_the_last_full_run(page: Path) -> None:
    assert BLOCK.search(page.read_text()) is not None
    run = msgspec.json.decode(LATEST.read_bytes(), type=Run)
    assert page.read_text() == filled(page, run), "write it with python -m benchmarks.pages"

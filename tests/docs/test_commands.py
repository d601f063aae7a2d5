"""The commands on the pages work as they are written, in their order."""

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, blocks, name_of
from tests.docs.reader import Reader

SEVERAL_NODES = {"docs/how-to/run-a-cluster.md", "docs/topics/ring.md"}
REPEATED_ELSEWHERE = {"docs/topics/simulation.md"}  # its command is on the page of the command line too


def runnable_pages() -> list[object]:
    """Pages with blocks to run, marked with their tier and their prerequisites."""
    found: list[object] = []
    for page in PAGES:
        run = [block for block in blocks(page) if block.role]
        marks = [pytest.mark.tier("all" if name_of(page) in SEVERAL_NODES | REPEATED_ELSEWHERE else "standard")]
        marks += [pytest.mark.needs_curl] if any("curl" in block.text for block in run) else []
        marks += [pytest.mark.needs_node] if any(block.language == "js" for block in run) else []
        if run:
            found.append(pytest.param(page, id=name_of(page), marks=marks))
    return found


@pytest.mark.parametrize("page", runnable_pages())
def test_the_commands_of_a_page_work_in_their_order(page: Path, tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        for block in blocks(page):
            if block.role:
                reader.execute(block)
        reader.check_followers()

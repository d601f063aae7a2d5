"""The page on installing: it knows every extra, and says what the errors of missing ones say."""

import re
import tomllib

import pytest

from ropewalk.model.extras import install
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "install.md"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_it_lists_exactly_the_extras_there_are() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)

    assert sorted(listed) == sorted(EXTRAS)


@pytest.mark.parametrize("extras", [("journal",), ("spark", "jre")])
def test_it_says_what_the_error_of_a_missing_extra_says(extras: tuple[str, ...]) -> None:
    command = install(*extras).partition(" (")[0]

    assert command in [line for block in blocks(PAGE) for line in block.text.splitlines()]

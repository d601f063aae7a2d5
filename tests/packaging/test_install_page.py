"""The installation page lists all extras, with the commands of the errors about missing ones."""

import re
import tomllib

import pytest

from ropewalk.model.extras import install_command
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "install.md"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_page_lists_all_extras() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)

    assert sorted(listed) == sorted(EXTRAS)


@pytest.mark.parametrize("extras", [("journal",), ("spark", "jre")])
def test_page_has_the_command_of_the_error_about_a_missing_extra(extras: tuple[str, ...]) -> None:
    command = install_command(*extras).partition(" (")[0]

    assert command in [line for block in blocks(PAGE) for line in block.text.splitlines()]

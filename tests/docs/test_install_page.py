"""The page on installing: it knows every extra, and it is the only place that says how Ropewalk gets onto a machine."""

import re
import tomllib

import pytest

from ropewalk.model.installing import install
from tests.docs.pages import ROOT, blocks, name_of

PAGE = ROOT / "docs" / "install.md"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
FROM_AN_INDEX = re.compile(r"(?:pip|uv|poetry|pipx) (?:install|add)\b[^\n]*[ '\"]ropewalk\b(?!/)")
TEXTS = [
    path
    for root in ("docs", "examples", "src", "benchmarks")
    for path in sorted((ROOT / root).rglob("*"))
    if path.suffix in (".md", ".py", ".yml", ".toml", ".html")
]


def test_it_lists_exactly_the_extras_there_are() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)

    assert sorted(listed) == sorted(EXTRAS)


@pytest.mark.parametrize("extras", [("journal",), ("spark", "jre")])
def test_it_says_what_the_error_of_a_missing_extra_says(extras: tuple[str, ...]) -> None:
    command = install(*extras).partition(" (")[0]

    assert command in [line for block in blocks(PAGE) for line in block.text.splitlines()]


def test_nothing_tells_to_install_from_an_index_where_nothing_is() -> None:
    assert [name_of(path) for path in [*TEXTS, ROOT / "README.md"] if FROM_AN_INDEX.search(path.read_text())] == []

"""Every page: its links resolve, it is in the index, and it contains no paths of a particular machine."""

import re
from collections.abc import Callable
from pathlib import Path

from tests.docs.pages import PAGES, ROOT, anchors, blocks, links, name_of

MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:work|root|home|Users|tmp)\b")
INSTALL_FROM_PYPI = re.compile(r"(?:pip|uv|poetry|pipx) (?:install|add)\b[^\n]*[ '\"]ropewalk\b(?!/)")
TEXTS = [
    path
    for root in ("docs", "examples", "src", "benchmarks")
    for path in sorted((ROOT / root).rglob("*"))
    if path.suffix in (".md", ".py", ".yml", ".toml", ".html")
]


def findings(check: Callable[[Path], list[str]]) -> dict[str, list[str]]:
    """What a check finds on the pages, by page. Pages without findings are left out."""
    found = {name_of(page): check(page) for page in PAGES}
    return {name: faults for name, faults in found.items() if faults}


def test_links_lead_to_an_existing_file_and_heading() -> None:
    def dead_links(page: Path) -> list[str]:
        return [target for target in links(page) if not resolves(page, target)]

    assert findings(dead_links) == {}


def resolves(page: Path, target: str) -> bool:
    path, _, fragment = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    return file.exists() and (not fragment or fragment in anchors(file))


def test_pages_contain_no_absolute_paths_of_a_developer_machine() -> None:
    assert findings(lambda page: MACHINE_PATHS.findall(page.read_text())) == {}


def test_the_index_links_to_every_page_below_it() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in links(index)}

    below = [page for page in PAGES if index.parent in page.parents and page != index]
    assert [name_of(page) for page in below if page not in linked] == []


def test_no_install_command_uses_pypi_where_the_package_is_not_published() -> None:
    assert [name_of(path) for path in [*TEXTS, ROOT / "README.md"] if INSTALL_FROM_PYPI.search(path.read_text())] == []


def test_pages_that_set_data_dir_name_the_extra_it_needs() -> None:
    pages = {page: (ROOT / page).read_text() for page in ("README.md", "docs/tutorial.md", "docs/how-to/deploy.md")}
    assert [page for page, text in pages.items() if "data_dir" not in text] == []
    assert [page for page, text in pages.items() if not re.search(r"\[journal\]'|the extra `journal`", text)] == []


def test_the_systemd_unit_has_a_writable_state_directory() -> None:
    assert "\nStateDirectory=ropewalk\n" in (ROOT / "docs/how-to/deploy.md").read_text()


def test_spark_pages_state_which_python_the_workers_need() -> None:
    pages = ("docs/how-to/spark.md", "docs/reference/spark.md")
    assert [page for page in pages if "PYSPARK_PYTHON" not in (ROOT / page).read_text()] == []


def test_the_tutorial_shows_the_message_handler_of_the_chat_example() -> None:
    page = {line.strip() for line in (ROOT / "examples" / "chat" / "index.html").read_text().splitlines()}
    (shown,) = [block.text for block in blocks(ROOT / "docs" / "tutorial.md") if "import { connect }" in block.text]
    listener = shown[shown.index("chat.on(") :]

    assert [line for line in listener.splitlines() if line.strip() not in page] == []

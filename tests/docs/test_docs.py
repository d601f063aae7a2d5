"""Every page: its links lead somewhere, its commands work as they stand there, and it speaks of nobody's machine."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, blocks, links, name_of
from tests.docs.reader import Reader

MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:work|root|home|Users|tmp)\b")
FROM_AN_INDEX = re.compile(r"(?:pip|uv|poetry|pipx) (?:install|add)\b[^\n]*[ '\"]ropewalk\b(?!/)")
TEXTS = [
    path
    for root in ("docs", "examples", "src", "benchmarks")
    for path in sorted((ROOT / root).rglob("*"))
    if path.suffix in (".md", ".py", ".yml", ".toml", ".html")
]


def playable() -> list[object]:
    """Pages with blocks to run, marked with what these need."""
    found: list[object] = []
    for page in PAGES:
        played = [block for block in blocks(page) if block.role]
        marks = [pytest.mark.needs_curl] if any("curl" in block.text for block in played) else []
        marks += [pytest.mark.needs_node] if any(block.language == "js" for block in played) else []
        if played:
            found.append(pytest.param(page, id=name_of(page), marks=marks))
    return found


@pytest.mark.parametrize("page", playable())
def test_what_a_page_tells_to_type_works_in_the_order_in_which_it_stands_there(page: Path, tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        for block in blocks(page):
            if block.role:
                reader.obey(block)
        reader.check_followers()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    dead = [target for target in links(page) if not leads_somewhere(page, target)]

    assert dead == []


def leads_somewhere(page: Path, target: str) -> bool:
    path, _, fragment = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    return file.exists() and (not fragment or fragment in anchors(file))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_names_a_path_of_somebodys_machine(page: Path) -> None:
    assert MACHINE_PATHS.findall(page.read_text()) == []


def test_the_index_leads_to_every_page_below_it() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in links(index)}

    below = [page for page in PAGES if index.parent in page.parents and page != index]
    assert [name_of(page) for page in below if page not in linked] == []


def test_nothing_tells_to_install_from_an_index_where_nothing_is() -> None:
    assert [name_of(path) for path in [*TEXTS, ROOT / "README.md"] if FROM_AN_INDEX.search(path.read_text())] == []


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md", "docs/how-to/deploy.md"])
def test_whoever_is_told_to_keep_data_is_told_which_extra_that_needs(page: str) -> None:
    text = (ROOT / page).read_text()
    assert "data_dir" in text
    assert re.search(r"\[journal\]'|the extra `journal`", text)


def test_the_service_unit_has_a_directory_that_it_may_write_to() -> None:
    assert "\nStateDirectory=ropewalk\n" in (ROOT / "docs/how-to/deploy.md").read_text()


@pytest.mark.parametrize("page", ["docs/how-to/spark.md", "docs/reference/spark.md"])
def test_the_pages_on_spark_say_which_python_its_workers_need(page: str) -> None:
    assert "PYSPARK_PYTHON" in (ROOT / page).read_text()


def test_the_tutorial_handles_messages_as_the_page_of_its_example_does() -> None:
    page = {line.strip() for line in (ROOT / "examples" / "chat" / "index.html").read_text().splitlines()}
    (shown,) = [block.text for block in blocks(ROOT / "docs" / "tutorial.md") if "new Session(" in block.text]
    listener = shown[shown.index("chat.addEventListener") : shown.index("chat.open")]

    assert [line for line in listener.splitlines() if line.strip() not in page] == []

"""The page on the archive: its SQL runs, and its table of columns is that of the archive."""

import re
from contextlib import chdir
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.archive_writer import Scribe, message
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "topics" / "archive.md"
COLUMN_ROW = re.compile(r"^\| (?P<names>`\w+`(?:, `\w+`)*) \| (?P<types>[a-z]+(?:, [a-z]+)*) \|", re.MULTILINE)


@pytest.fixture
def scribe(tmp_path: Path) -> Scribe:
    scribe = Scribe(tmp_path / "data" / "pipeline" / "archive")
    scribe.archive([message("a", offset) for offset in range(1, 4)], joined=[("a", "sid")])
    return scribe


def test_sql_block_counts_the_rows_by_event(scribe: Scribe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [block] = [block for block in blocks(PAGE) if "QueryBuilder" in block.text]

    with chdir(tmp_path):
        exec(compile(block.text, str(PAGE), "exec"), {})

    assert re.findall(r"\[\[.*\]\]", capsys.readouterr().out) == ['[["joined","publish"]]', "[[1,3]]"]


def test_table_of_columns_is_that_of_the_archive(scribe: Scribe) -> None:
    fields = {field.name: str(field.type.type) for field in DeltaTable(scribe.root).schema().fields}
    listed: dict[str, str] = {}
    for row in COLUMN_ROW.finditer(PAGE.read_text()):
        names, types = re.findall(r"\w+", row["names"]), row["types"].split(", ")
        listed |= dict(zip(names, types * len(names) if len(types) == 1 else types, strict=True))

    assert listed == fields | {"shard": "int"}

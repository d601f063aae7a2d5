"""The columns of the journal as text: in the terminal and on the reference pages."""

import re
from pathlib import Path

import pytest

from ropewalk.cli.journal import as_markdown
from ropewalk.cli.main import main
from ropewalk.model.journal import COLUMNS
from ropewalk.pipeline.options import source_options
from ropewalk.pipeline.rows import sql_schema

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


def test_reference_page_is_up_to_date() -> None:
    assert (REFERENCE / "journal-rows.md").read_text() == as_markdown(), "run `make docs`"


def test_columns_command_lists_them_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", "columns"]) == 0

    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [column.name for column in COLUMNS]


def test_spark_page_lists_the_columns_of_the_source() -> None:
    chapter = (REFERENCE / "spark.md").read_text().partition("## Columns of the source\n")[2].partition("\n## ")[0]
    listed = [
        (name.strip("` "), kind.strip())
        for names, kinds in re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", chapter, re.MULTILINE)
        for name, kind in zip(names.split(","), re.split(r",(?! *string>)", kinds), strict=True)
    ]
    options = source_options({"url": "http://127.0.0.1:1", "includeHeaders": "true"}, streaming=True)

    assert listed == [tuple(column.strip("`").split("` ")) for column in sql_schema(options).split(", ")]

"""The list of jobs: for people, and as the page of the reference."""

from pathlib import Path

from ropewalk.pipeline.listing import as_markdown, as_table
from ropewalk.pipeline.registry import BUILT_IN, load_jobs

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "jobs.md"


def test_the_reference_page_is_the_one_that_the_code_draws() -> None:
    jobs = {name: load_jobs()[name] for name in BUILT_IN}

    assert PAGE.read_text() == as_markdown(jobs), "`make docs` draws it"


def test_every_option_is_explained() -> None:
    assert "|  |\n" not in as_markdown(load_jobs())


def test_a_line_says_whether_a_job_ends() -> None:
    kinds = dict(line.split()[:2] for line in as_table(load_jobs()).splitlines())

    assert (kinds["archive"], kinds["audit"]) == ("stream", "batch")

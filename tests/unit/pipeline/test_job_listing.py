"""The list of jobs: for people, and as the page of the reference."""

from pathlib import Path

from ropewalk.pipeline.context import BatchOptions
from ropewalk.pipeline.job_listing import as_markdown, as_table
from ropewalk.pipeline.registry import BUILT_IN, Job, load_jobs

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "jobs.md"


def built_in() -> dict[str, Job]:
    """Ours alone: jobs of users that other tests loaded are registered in this process too."""
    return {name: load_jobs()[name] for name in BUILT_IN}


def test_the_reference_page_is_the_one_that_the_code_draws() -> None:
    assert PAGE.read_text() == as_markdown(built_in()), "`make docs` draws it"


def test_every_option_is_explained() -> None:
    assert "|  |\n" not in as_markdown(built_in())


class Bare(BatchOptions, frozen=True, kw_only=True):
    wish: str = "none"


def test_an_option_that_its_author_left_unexplained_is_listed_all_the_same() -> None:
    job = Job("mine", "does it", Bare, lambda context, options: 0)

    assert "| `wish` |" in as_markdown({"mine": job})


def test_a_line_says_whether_a_job_ends() -> None:
    kinds = dict(line.split()[:2] for line in as_table(load_jobs()).splitlines())

    assert (kinds["archive"], kinds["audit"]) == ("stream", "batch")

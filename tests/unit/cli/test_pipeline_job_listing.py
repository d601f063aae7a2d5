"""The list of jobs as a table and as the reference page."""

from pathlib import Path

from ropewalk.cli.pipeline import as_markdown, as_table
from ropewalk.pipeline.context import BatchOptions
from ropewalk.pipeline.registry import BUILT_IN, Job, load_jobs

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "jobs.md"


def built_in() -> dict[str, Job]:
    """Returns built-in jobs only: other tests may have registered more in this process."""
    return {name: load_jobs()[name] for name in BUILT_IN}


def test_reference_page_is_up_to_date() -> None:
    assert PAGE.read_text() == as_markdown(built_in()), "run `make docs`"


def test_every_option_is_explained() -> None:
    assert "|  |\n" not in as_markdown(built_in())


class Bare(BatchOptions, frozen=True, kw_only=True):
    wish: str = "none"


def test_option_without_a_description_is_listed() -> None:
    job = Job("mine", "summary", Bare, lambda context, options: 0)

    assert "| `wish` |" in as_markdown({"mine": job})


def test_table_shows_streams_and_batches() -> None:
    kinds = dict(line.split()[:2] for line in as_table(load_jobs()).splitlines())

    assert (kinds["archive"], kinds["audit"]) == ("stream", "batch")

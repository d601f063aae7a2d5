"""The compact job with a damaged archive."""

from pathlib import Path

import pytest

from ropewalk.pipeline.context import Context, Place
from ropewalk.pipeline.jobs.compact import CompactOptions
from ropewalk.pipeline.jobs.compact import compact as compact_job
from tests.archive_writer import Scribe, flip_payload
from tests.unit.pipeline.archives import batch_file, messages


def test_job_fails_if_a_file_is_damaged(scribe: Scribe, tmp_path: Path) -> None:
    for first in (1, 11, 21):
        scribe.archive(messages("a", first, first + 9))
    output: list[str] = []
    context = Context(
        Place("", "", str(scribe.root), tmp_path / "state"), lambda: pytest.fail("Spark is not needed"), output.append
    )
    flip_payload(batch_file(scribe, 2))

    assert compact_job(context, CompactOptions()) == 1
    assert f"{batch_file(scribe, 2).name} was changed after it was written" in output[-1]

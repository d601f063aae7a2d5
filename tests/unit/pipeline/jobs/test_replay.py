"""The replay job with a damaged archive."""

from pathlib import Path

import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.context import Context, Place
from ropewalk.pipeline.jobs.replay import ReplayOptions, replay
from tests.archive_writer import Scribe, flip_payload
from tests.unit.pipeline.archives import batch_file, messages


def test_damaged_file_is_not_replayed(scribe: Scribe, tmp_path: Path) -> None:
    for first in (1, 11):
        scribe.archive(messages("a", first, first + 9))
    context = Context(Place("", "", str(scribe.root), tmp_path), lambda: pytest.fail("Spark is not needed"))
    flip_payload(batch_file(scribe, 1))

    with pytest.raises(UserMistake, match=f"{batch_file(scribe, 1).name} was changed"):
        replay(context, ReplayOptions())

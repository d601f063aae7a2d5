"""Where the archive job begins when its progress is lost, as after a restore."""

import json
from pathlib import Path

import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.jobs.archive import beginning
from tests.archive_writer import Scribe, message


@pytest.fixture
def archived(tmp_path: Path) -> str:
    scribe = Scribe(tmp_path / "archive", shards=1)
    scribe.archive([message("a", n + 1) for n in range(10)])
    return str(scribe.root)


def test_an_archive_without_the_jobs_progress_is_refused_and_the_way_out_is_said(archived: str, tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match=r"archive\.starting=archive"):
        beginning("earliest", archived, str(tmp_path / "checkpoint"))


def test_the_job_can_begin_where_the_archive_ends(archived: str, tmp_path: Path) -> None:
    assert json.loads(beginning("archive", archived, str(tmp_path / "checkpoint"))) == {"0": 10}
    assert beginning("archive", str(tmp_path / "nothing"), str(tmp_path / "checkpoint")) == "earliest"


def test_a_job_with_its_progress_and_a_first_one_begin_as_they_are_told(archived: str, tmp_path: Path) -> None:
    (tmp_path / "used" / "offsets").mkdir(parents=True)
    (tmp_path / "used" / "offsets" / "0").touch()

    assert beginning("earliest", archived, str(tmp_path / "used")) == "earliest"
    assert beginning("latest", archived, str(tmp_path / "checkpoint")) == "latest"
    assert beginning("earliest", str(tmp_path / "nothing"), str(tmp_path / "checkpoint")) == "earliest"

"""The start of the archive job after its progress was lost, as after a restore."""

import json
from pathlib import Path

import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.jobs.archive import beginning
from tests.archive_writer import Scribe, message


@pytest.fixture
def archive_root(tmp_path: Path) -> str:
    scribe = Scribe(tmp_path / "archive", shards=1)
    scribe.archive([message("a", n + 1) for n in range(10)])
    return str(scribe.root)


def test_archive_without_progress_is_rejected_with_a_hint(archive_root: str, tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match=r"archive\.starting=archive"):
        beginning("earliest", archive_root, str(tmp_path / "checkpoint"))


def test_job_can_start_at_the_end_of_the_archive(archive_root: str, tmp_path: Path) -> None:
    assert json.loads(beginning("archive", archive_root, str(tmp_path / "checkpoint"))) == {"0": 10}
    assert beginning("archive", str(tmp_path / "nothing"), str(tmp_path / "checkpoint")) == "earliest"


def test_job_with_progress_or_without_an_archive_starts_as_configured(archive_root: str, tmp_path: Path) -> None:
    (tmp_path / "used" / "offsets").mkdir(parents=True)
    (tmp_path / "used" / "offsets" / "0").touch()

    assert beginning("earliest", archive_root, str(tmp_path / "used")) == "earliest"
    assert beginning("latest", archive_root, str(tmp_path / "checkpoint")) == "latest"
    assert beginning("earliest", str(tmp_path / "nothing"), str(tmp_path / "checkpoint")) == "earliest"

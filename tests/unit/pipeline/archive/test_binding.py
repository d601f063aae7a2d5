"""The binding of a query to its table: a missing, different or older table is rejected."""

import json
import shutil
from pathlib import Path

import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.archive import binding, compact
from tests.archive_writer import Scribe
from tests.unit.pipeline.archives import messages


@pytest.fixture
def checkpoint(tmp_path: Path, scribe: Scribe) -> str:
    """The checkpoint of a query that has archived one batch."""
    place = tmp_path / "checkpoint"
    place.mkdir()
    scribe.archive(messages("a", 1, 10))
    binding.bind(str(scribe.root), str(place))
    return str(place)


def test_query_continues_in_its_own_table(scribe: Scribe, checkpoint: str) -> None:
    binding.check(str(scribe.root), checkpoint, "query", 1)
    scribe.archive(messages("a", 11, 20))
    compact(str(scribe.root))
    binding.check(str(scribe.root), checkpoint, "query", 2)


def test_missing_table_is_rejected(scribe: Scribe, checkpoint: str) -> None:
    shutil.rmtree(scribe.root)
    with pytest.raises(UserMistake, match="the table is missing"):
        binding.check(str(scribe.root), checkpoint, "query", 1)
    with pytest.raises(UserMistake, match="the table is missing"):
        binding.check_started(str(scribe.root), checkpoint)


def test_other_table_at_the_same_path_is_rejected(scribe: Scribe, checkpoint: str) -> None:
    shutil.rmtree(scribe.root)
    Scribe(scribe.root, shards=1).archive(messages("a", 1, 10))
    with pytest.raises(UserMistake, match="another table"):
        binding.check(str(scribe.root), checkpoint, "query", 1)


def test_older_copy_of_the_table_is_rejected(scribe: Scribe, checkpoint: str, tmp_path: Path) -> None:
    shutil.copytree(scribe.root, tmp_path / "copy")
    scribe.archive(messages("a", 11, 20))
    binding.bind(str(scribe.root), checkpoint)
    shutil.rmtree(scribe.root)
    shutil.move(tmp_path / "copy", scribe.root)
    with pytest.raises(UserMistake, match="older copy"):
        binding.check(str(scribe.root), checkpoint, "query", 2)


def test_table_without_its_last_commit_is_rejected(scribe: Scribe, checkpoint: str) -> None:
    """It is the same table at the same version. The query would continue after a hole."""
    scribe.archive(messages("a", 11, 20))
    binding.bind(str(scribe.root), checkpoint)
    binding.check(str(scribe.root), checkpoint, "query", 2)
    last = max((scribe.root / "_delta_log").glob("*.json"))
    last.write_bytes(b"")
    with pytest.raises(UserMistake, match=r"lost its last rows .shard 0 ended at position 20 and ends at 10"):
        binding.check(str(scribe.root), checkpoint, "query", 2)
    with pytest.raises(UserMistake, match="lost its last rows"):
        binding.check_started(str(scribe.root), checkpoint)


def test_binding_of_an_older_version_is_accepted(scribe: Scribe, checkpoint: str) -> None:
    path = Path(checkpoint) / binding.FILE
    older = json.loads(path.read_bytes())
    del older["reached"]
    path.write_text(json.dumps(older))
    binding.check(str(scribe.root), checkpoint, "query", 1)


def test_query_with_a_remote_checkpoint_is_identified_by_its_commits(scribe: Scribe) -> None:
    root = str(scribe.root)
    binding.check(root, "", "query", 0)
    with pytest.raises(UserMistake, match="has nothing of it"):
        binding.check(root, "", "query", 3)
    scribe.archive(messages("a", 1, 10))
    binding.check(root, "hdfs://somewhere/checkpoint", "query", 3)
    with pytest.raises(UserMistake, match="has nothing of it"):
        binding.check(root, "", "another", 3)

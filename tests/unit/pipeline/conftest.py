"""An archive that is written without Spark."""

from pathlib import Path

import pytest

from tests.archive_writer import Scribe


@pytest.fixture
def scribe(tmp_path: Path) -> Scribe:
    return Scribe(tmp_path / "archive", shards=1)

"""Staging of transactions in files: the complete suite."""

from pathlib import Path

from ropewalk.adapters.staging.files import FileStaging
from ropewalk.ports import Staging
from ropewalk.testing.staging import StagingConformance


class TestFileStaging(StagingConformance):
    def make(self, directory: Path) -> Staging:
        return FileStaging(directory / "transactions")

"""Verify, repair and copy a journal's files, beside the server that writes them."""

from pathlib import Path

from ropewalk.adapters.journals.arrow.backup import JournalCopy
from ropewalk.adapters.journals.arrow.repair import ArchivedRows, Repaired, repair
from ropewalk.adapters.journals.arrow.survey import Progress
from ropewalk.adapters.journals.arrow.verification import Report, verify


class JournalFiles:
    """Everything raises UserMistake where there is no journal, or one of a newer format."""

    def __init__(self, data_dir: Path, progress: Progress) -> None:
        self._data_dir = data_dir
        self._progress = progress

    def verify(self) -> Report:
        """Changes nothing, and a server may run."""
        return verify(self._data_dir, self._progress)

    def repair(self, archived: ArchivedRows | None) -> Repaired:
        """Raises UserMistake while a server runs. Without an archive no hole is filled."""
        return repair(self._data_dir, archived, self._progress)

    def copy(self, target: Path) -> JournalCopy:
        """To be taken in steps, and a server may run."""
        return JournalCopy(self._data_dir / "journal", target / "journal", self._progress)

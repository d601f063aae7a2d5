"""Every journal through the suites that apply to it: the absent one, and Arrow in its three durabilities."""

from pathlib import Path

from ropewalk.adapters.journals.arrow import ArrowJournal
from ropewalk.adapters.journals.none import NoJournal
from ropewalk.model.limits import JournalLimits
from ropewalk.testing.clock import ManualClock
from ropewalk.testing.journal import AcknowledgingConformance, JournalConformance, KeepingConformance, KeptJournal


class TestNoJournal(JournalConformance):
    def make(self, directory: Path) -> KeptJournal:
        return NoJournal()


class TestArrowInMemory(KeepingConformance):
    def make(self, directory: Path) -> KeptJournal:
        return ArrowJournal(directory, ManualClock(), JournalLimits(shards=3), durability="memory")


class TestArrowWritten(AcknowledgingConformance):
    def make(self, directory: Path) -> KeptJournal:
        return ArrowJournal(directory, ManualClock(), JournalLimits(shards=3), durability="journal")


class TestArrowOnDisk(AcknowledgingConformance):
    def make(self, directory: Path) -> KeptJournal:
        return ArrowJournal(directory, ManualClock(), JournalLimits(shards=3), durability="fsync")

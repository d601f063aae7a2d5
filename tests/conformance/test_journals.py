"""The journals: none, and Arrow. `journal` runs the complete suite; the others differ in when a write is acknowledged."""

from pathlib import Path

import pytest

from ropewalk.adapters.journals.arrow import ArrowJournal
from ropewalk.adapters.journals.none import NoJournal
from ropewalk.model.limits import JournalLimits
from ropewalk.testing.clock import ManualClock
from ropewalk.testing.journal import AcknowledgingConformance, JournalConformance, KeepingConformance, KeptJournal
from tests.conformance.selection import only


class TestNoJournal(JournalConformance):
    def make(self, directory: Path) -> KeptJournal:
        return NoJournal()


@only("rows_have_dense_positions_per_shard_in_write_order", "restart_recovers_tips_rows_and_producers", "gauges_count_the_rows")
class TestDurabilityMemory(KeepingConformance):
    def make(self, directory: Path) -> KeptJournal:
        return ArrowJournal(directory, ManualClock(), JournalLimits(shards=3), durability="memory")


class TestDurabilityJournal(AcknowledgingConformance):
    def make(self, directory: Path) -> KeptJournal:
        return ArrowJournal(directory, ManualClock(), JournalLimits(shards=3), durability="journal")


@pytest.mark.tier("all")
@only(
    "rows_can_be_read_as_soon_as_they_are_acknowledged",
    "rows_have_dense_positions_per_shard_in_write_order",
    "restart_recovers_tips_rows_and_producers",
    "consumer_only_moves_forward_and_survives_a_restart",
)
class TestDurabilityFsync(AcknowledgingConformance):
    def make(self, directory: Path) -> KeptJournal:
        return ArrowJournal(directory, ManualClock(), JournalLimits(shards=3), durability="fsync")

"""The conformance suite for journals detects faulty ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ropewalk.adapters.journals.arrow import ArrowJournal
from ropewalk.model.errors import BadRequest
from ropewalk.model.journal import Consumer, Row, ShardMark, ShardSpan
from ropewalk.model.limits import JournalLimits
from ropewalk.testing.clock import ManualClock
from ropewalk.testing.journal import AcknowledgingConformance, KeptJournal
from tests.unit.testing.suites import Suite, failed_tests


class Journaled(AcknowledgingConformance):
    kind: type[ArrowJournal] = ArrowJournal

    def make(self, directory: Path) -> KeptJournal:
        return self.kind(directory, ManualClock(), JournalLimits(shards=3), durability="journal")


class AcknowledgingBeforeTheWrite(Journaled):
    class kind(ArrowJournal):
        async def write(self, rows: Sequence[Row]) -> None:
            self.write_nowait(rows)


class Reordering(Journaled):
    class kind(ArrowJournal):
        async def write(self, rows: Sequence[Row]) -> None:
            await super().write(rows[::-1])


class ReportingTooManyRows(Journaled):
    class kind(ArrowJournal):
        def spans(self) -> list[ShardSpan]:
            return [ShardSpan(span.shard, span.epoch, span.first, span.end + 1) for span in super().spans()]


class MovingBackwards(Journaled):
    class kind(ArrowJournal):
        async def move(self, name: str, marks: Mapping[int, ShardMark]) -> Consumer:
            await self.remove(name)
            return await self.pin(name, marks)


class AcceptingUnknownShards(Journaled):
    class kind(ArrowJournal):
        def mark_archived(self, positions: dict[int, int]) -> None:
            try:
                super().mark_archived(positions)
            except BadRequest:
                return


FAULTY = {
    AcknowledgingBeforeTheWrite: "test_rows_can_be_read_as_soon_as_they_are_acknowledged",
    Reordering: "test_rows_have_dense_positions_per_shard_in_write_order",
    ReportingTooManyRows: "test_empty_journal_has_no_rows_consumers_or_unknown_shards",
    MovingBackwards: "test_consumer_only_moves_forward_and_survives_a_restart",
    AcceptingUnknownShards: "test_archived_end_is_that_of_the_last_report",
}


@pytest.mark.parametrize(("suite", "test"), FAULTY.items(), ids=lambda each: getattr(each, "__name__", ""))
async def test_faulty_journal_fails_its_test(suite: Suite, test: str, tmp_path: Path) -> None:
    assert await failed_tests(suite, tmp_path, test) == {test}


async def test_correct_journal_passes_all_tests(tmp_path: Path) -> None:
    assert await failed_tests(Journaled, tmp_path) == set()

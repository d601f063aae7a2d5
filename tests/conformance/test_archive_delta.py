"""The Delta archive: the complete suite on files; with the newest batch in the journal, the cases that read across both.

A damaged Delta log instead of damaged Parquet files only changes the cases about damage.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from ropewalk.adapters.archives.delta import DeltaArchive
from ropewalk.adapters.journals.arrow import ArrowJournal
from ropewalk.model.journal import Row, RowKind, encode_publication_detail
from ropewalk.model.limits import JournalLimits
from ropewalk.model.messages import MessageFields, Registered
from ropewalk.ports import Archive
from ropewalk.testing.archive import ArchiveConformance, key_of
from ropewalk.testing.clock import ManualClock
from tests.archive_writer import Scribe
from tests.conformance.selection import only

SHARDS = 3


@contextmanager
def damaged(root: Path, pattern: str) -> Iterator[None]:
    """Every file of this pattern is truncated."""
    kept = {path: path.read_bytes() for path in root.rglob(pattern)}
    assert kept
    for path, data in kept.items():
        path.write_bytes(data[: len(data) // 2])
    yield
    for path, data in kept.items():
        path.write_bytes(data)


class TestDeltaArchive(ArchiveConformance):
    @pytest.fixture(autouse=True)
    def _writer(self, tmp_path: Path) -> None:
        self.scribe = Scribe(tmp_path / "archive", SHARDS, row_group=8, key_of=key_of)

    def make(self, directory: Path) -> Archive:
        return DeltaArchive(str(self.scribe.root), SHARDS, ManualClock(), refresh=0.0)

    async def store(self, directory: Path, messages: Sequence[Registered]) -> None:
        self.scribe.archive(messages)

    def unreadable(self, directory: Path) -> AbstractContextManager[None]:
        return damaged(self.scribe.root, "*.parquet")


@only(
    "unreadable_archive_is_unavailable_until_it_is_repaired",
    "archive_damaged_after_a_read_returns_no_wrong_messages",
)
class TestDeltaArchiveWithDamagedLog(TestDeltaArchive):
    def unreadable(self, directory: Path) -> AbstractContextManager[None]:
        return damaged(self.scribe.root / "_delta_log", "*.json")


@only(
    "empty_archive_returns_nothing_and_is_healthy",
    "messages_are_returned_as_registered",
    "range_is_exact_at_both_ends",
    "range_may_exceed_the_stored_messages",
    "missing_offsets_are_not_filled",
    "messages_stored_out_of_order_are_sorted_by_offset",
    "message_stored_twice_is_returned_once",
    "next_read_includes_later_batches",
    "epochs_of_a_stream_are_kept_apart",
    "streams_with_one_partition_key_are_kept_apart",
    "limited_read_reports_more",
    "consecutive_reads_return_the_complete_range",
    "large_messages_are_returned_completely",
    "since_omits_only_older_messages",
    "since_works_with_a_limit",
    "since_includes_a_message_of_that_moment",
    "since_accepts_the_far_future_and_past",
    "unreadable_archive_is_unavailable_until_it_is_repaired",
    "archive_damaged_after_a_read_returns_no_wrong_messages",
    "pending_reads_at_stop_succeed_or_are_unavailable",
)
class TestDeltaArchiveWithJournal(TestDeltaArchive):
    """The newest batch is in a real journal and not in the files yet."""

    @pytest.fixture(autouse=True)
    async def _journal(self, tmp_path: Path) -> AsyncIterator[None]:
        self.journal = ArrowJournal(tmp_path / "journal", ManualClock(), JournalLimits(shards=SHARDS), durability="journal")
        self.journal.open(1e12)
        await self.journal.start()
        self.unarchived: Sequence[Registered] = ()
        yield
        await self.journal.stop()

    def make(self, directory: Path) -> Archive:
        return DeltaArchive(str(self.scribe.root), SHARDS, ManualClock(), refresh=0.0, journal=self.journal)

    async def store(self, directory: Path, messages: Sequence[Registered]) -> None:
        self.scribe.archive(self.unarchived)
        self.unarchived = messages
        await self.journal.write([_row(each) for each in messages])


def _row(each: Registered) -> Row:
    fields = each.fields or MessageFields()
    return Row(
        RowKind.PUBLISH,
        key_of(each.stream),
        each.timestamp,
        each.stream,
        each.epoch,
        each.offset,
        each.payload,
        fields.uid,
        each.exclude_socket,
        each.broadcast_type,
        detail=encode_publication_detail(fields.ts_producer),
    )

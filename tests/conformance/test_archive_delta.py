"""The archive through the suite every archive must pass: all of it in files, and with the newest batch in the journal only."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from ropewalk.adapters.archives import DeltaArchive
from ropewalk.adapters.journals.arrow import ArrowJournal
from ropewalk.model.journal import Row, RowKind, publication_detail
from ropewalk.model.limits import JournalLimits
from ropewalk.model.messages import MessageFields, Registered
from ropewalk.ports import Archive
from ropewalk.testing.archive import ArchiveConformance, key_of
from ropewalk.testing.clock import ManualClock
from tests.archive_writer import Scribe

SHARDS = 3


@contextmanager
def damaged(root: Path, pattern: str) -> Iterator[None]:
    """Every file that fits is cut short."""
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


class TestDeltaArchiveWithATornLog(TestDeltaArchive):
    def unreadable(self, directory: Path) -> AbstractContextManager[None]:
        return damaged(self.scribe.root / "_delta_log", "*.json")


class TestDeltaArchiveBeforeAJournal(TestDeltaArchive):
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
        detail=publication_detail(fields.ts_producer),
    )

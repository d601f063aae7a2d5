"""The conformance suite for archives passes a correct one and detects each faulty one."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from ropewalk.model.errors import Unavailable
from ropewalk.model.history import ColdPiece, HistoryRange
from ropewalk.model.messages import Registered
from ropewalk.ports import Archive
from ropewalk.testing.archive import ArchiveConformance
from tests.unit.testing.suites import failed_tests


class Store:
    """Stored messages, and whether they can be read."""

    def __init__(self) -> None:
        self.messages: list[Registered] = []
        self.readable = True


class ListArchive:
    """A correct archive: a list with a linear search."""

    def __init__(self, stored: Store) -> None:
        self._store = stored
        self._stopped = False

    async def read(self, partition_key: str, wanted: HistoryRange) -> ColdPiece:
        if self._stopped:
            raise Unavailable("stopped")
        return await asyncio.to_thread(self._read, wanted)

    def _read(self, wanted: HistoryRange) -> ColdPiece:
        if not self._store.readable:
            raise Unavailable("damaged")
        kept = (each for each in self._of(wanted.stream, wanted.epoch) if each.timestamp >= wanted.since)
        inside = [each for each in kept if wanted.first <= each.offset <= wanted.last]
        found = self._once(inside)
        return ColdPiece(tuple(found[: wanted.limit]), more=len(found) > wanted.limit)

    def _of(self, stream: str, epoch: str) -> Iterator[Registered]:
        return (each for each in self._store.messages if each.stream == stream and each.epoch == epoch)

    def _once(self, messages: Sequence[Registered]) -> list[Registered]:
        found = {each.offset: each for each in messages}
        return [found[offset] for offset in sorted(found)]

    async def stop(self) -> None:
        self._stopped = True

    def health(self) -> str:
        return ""

    def gauges(self) -> dict[str, float]:
        return {"archive_reads_waiting": 0.0}


class ListSuite(ArchiveConformance):
    kind: type[ListArchive] = ListArchive

    def __init__(self) -> None:
        self.stored = Store()

    def make(self, directory: Path) -> Archive:
        return self.kind(self.stored)

    async def store(self, directory: Path, messages: Sequence[Registered]) -> None:
        self.stored.messages += messages

    @contextmanager
    def unreadable(self, directory: Path) -> Iterator[None]:
        self.stored.readable = False
        yield
        self.stored.readable = True


# --- faulty archives ------------------------------------------------------------------------------------------------------


class IgnoresEpochs(ListArchive):
    def _of(self, stream: str, epoch: str) -> Iterator[Registered]:
        return (each for each in self._store.messages if each.stream == stream)


class IgnoresCase(ListArchive):
    def _of(self, stream: str, epoch: str) -> Iterator[Registered]:
        named = (each for each in self._store.messages if each.stream.lower() == stream.lower())
        return (each for each in named if each.epoch == epoch)


class RepeatsDuplicates(ListArchive):
    def _once(self, messages: Sequence[Registered]) -> list[Registered]:
        return sorted(messages, key=lambda each: each.offset)


class NewestFirst(ListArchive):
    def _once(self, messages: Sequence[Registered]) -> list[Registered]:
        return super()._once(messages)[::-1]


class KeepsStoredOrder(ListArchive):
    def _once(self, messages: Sequence[Registered]) -> list[Registered]:
        return list({each.offset: each for each in messages}.values())


class ExcludesTheLastOffset(ListArchive):
    async def read(self, partition_key: str, wanted: HistoryRange) -> ColdPiece:
        return await super().read(partition_key, replace(wanted, last=wanted.last - 1))


class IgnoresTheLimit(ListArchive):
    async def read(self, partition_key: str, wanted: HistoryRange) -> ColdPiece:
        return await super().read(partition_key, replace(wanted, limit=10**9))


class NeverReportsMore(ListArchive):
    async def read(self, partition_key: str, wanted: HistoryRange) -> ColdPiece:
        return ColdPiece((await super().read(partition_key, wanted)).messages)


class IgnoresSince(ListArchive):
    async def read(self, partition_key: str, wanted: HistoryRange) -> ColdPiece:
        return await super().read(partition_key, replace(wanted, since=0.0))


class ExcludesSinceItself(ListArchive):
    async def read(self, partition_key: str, wanted: HistoryRange) -> ColdPiece:
        return await super().read(partition_key, replace(wanted, since=wanted.since + 1e-6))


class ReadsDamageAsEmpty(ListArchive):
    def _read(self, wanted: HistoryRange) -> ColdPiece:
        return super()._read(wanted) if self._store.readable else ColdPiece()


class RaisesLibraryErrors(ListArchive):
    def _read(self, wanted: HistoryRange) -> ColdPiece:
        if not self._store.readable:
            raise OSError("damaged")
        return super()._read(wanted)


class BlocksTheLoop(ListArchive):
    async def read(self, partition_key: str, wanted: HistoryRange) -> ColdPiece:
        if self._stopped:
            raise Unavailable("stopped")
        return self._read(wanted)


class ReadsAfterStop(ListArchive):
    async def stop(self) -> None: ...


class CancelsReads(ListArchive):
    async def read(self, partition_key: str, wanted: HistoryRange) -> ColdPiece:
        piece = await super().read(partition_key, wanted)
        if self._stopped:
            raise asyncio.CancelledError
        return piece


class UsesGaugesOfTheBackend(ListArchive):
    def gauges(self) -> dict[str, float]:
        return {"archive_reads_waiting": 0.0, "streams": 1.0}


FAULTY = {
    IgnoresEpochs: "test_epochs_of_a_stream_are_kept_apart",
    IgnoresCase: "test_unusual_stream_names_are_kept_apart",
    RepeatsDuplicates: "test_message_stored_twice_is_returned_once",
    NewestFirst: "test_streams_of_one_batch_are_returned_separately_in_order",
    KeepsStoredOrder: "test_messages_stored_out_of_order_are_sorted_by_offset",
    ExcludesTheLastOffset: "test_range_is_exact_at_both_ends",
    IgnoresTheLimit: "test_limited_read_reports_more",
    NeverReportsMore: "test_consecutive_reads_return_the_complete_range",
    IgnoresSince: "test_since_omits_only_older_messages",
    ExcludesSinceItself: "test_since_includes_a_message_of_that_moment",
    ReadsDamageAsEmpty: "test_unreadable_archive_is_unavailable_until_it_is_repaired",
    RaisesLibraryErrors: "test_archive_damaged_after_a_read_returns_no_wrong_messages",
    BlocksTheLoop: "test_read_does_not_block_the_event_loop",
    ReadsAfterStop: "test_stopped_archive_is_unavailable",
    CancelsReads: "test_pending_reads_at_stop_succeed_or_are_unavailable",
    UsesGaugesOfTheBackend: "test_gauges_have_the_prefix_of_the_archive",
}


async def test_correct_archive_passes_all_tests(tmp_path: Path) -> None:
    assert await failed_tests(ListSuite, tmp_path) == set()


@pytest.mark.parametrize(("kind", "test"), FAULTY.items(), ids=lambda each: getattr(each, "__name__", ""))
async def test_faulty_archive_fails_its_test(kind: type[ListArchive], test: str, tmp_path: Path) -> None:
    class FaultySuite(ListSuite):
        pass

    FaultySuite.kind = kind
    assert await failed_tests(FaultySuite, tmp_path, test) == {test}

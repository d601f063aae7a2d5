"""Conformance suite for `ports.Archive`: exact ranges, each message once, no wrong result during a fault.

Invariant: it uses the port only and does not depend on how messages are stored.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

import pytest

from ropewalk.model.errors import Unavailable
from ropewalk.model.history import ColdPiece, HistoryRange
from ropewalk.model.messages import LAST_KSUID, MessageFields, Registered, message_fields
from ropewalk.ports import Archive

NOON = 1_772_366_400.0
MINUTES_TO_MIDNIGHT = 12 * 60
PLENTY = 1_000_000
LARGE = 1 << 20

ODD_NAMES = (
    " ",
    "a b",
    "a/b",
    "a/../b",
    "..",
    "a=b&c",
    "100%",
    "100%25",
    "a",
    "A",
    "'\"\\",
    "a\nb",
    "\u00e9",
    "e\u0301",
    "ключ",
    "\U0001f600",
    "\U0010ffff\U0010ffff",
    "x" * 511,
    "x" * 512,
)


def message(stream: str, offset: int, epoch: str = "e", minute: float = 0.0) -> Registered:
    """Minutes are counted from noon."""
    payload = f'{{"at":"{epoch}/{offset}"}}'.encode()
    key = key_of(stream)
    fields = message_fields("", 0, key if key != stream else "")
    return Registered(stream, payload, NOON + 60 * minute, epoch, offset, fields=fields)


def run(stream: str, first: int, last: int, epoch: str = "e") -> tuple[Registered, ...]:
    """Offsets [first, last], one a minute."""
    return tuple(message(stream, offset, epoch, offset) for offset in range(first, last + 1))


def key_of(stream: str) -> str:
    """The partition key of a stream in these tests: what stands before a colon, or the whole name."""
    return stream.partition(":")[0] or stream


class ArchiveRig:
    """Hooks of the suite. One directory is one archive."""

    def make(self, directory: Path) -> Archive:
        """An archive that sees at each read what was stored before it."""
        raise NotImplementedError("return an archive over this directory")

    async def store(self, directory: Path, messages: Sequence[Registered]) -> None:
        """Archive one batch as the archive's writer does, each stream under the partition key that `key_of` gives, as the
        messages' `fields` do. A batch may repeat messages of earlier ones, and batches need not come in order."""
        raise NotImplementedError("archive these messages")

    def unreadable(self, directory: Path) -> AbstractContextManager[None]:
        """While it is entered, nothing that was stored before the newest batch can be read. Afterwards all is as it was."""
        raise NotImplementedError("damage what is stored, and put it back")

    @asynccontextmanager
    async def running(self, directory: Path) -> AsyncIterator[Archive]:
        archive = self.make(directory)
        try:
            yield archive
        finally:
            await archive.stop()


class ArchiveConformance(ArchiveRig):
    """Inherit it as `TestMyArchive` and fill `make`, `store` and `unreadable`."""

    # --- what is there ------------------------------------------------------------------------------------------------

    async def test_empty_archive_returns_nothing_and_is_healthy(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as archive:
            assert await archive.read("a", HistoryRange("a", "e", 1, PLENTY, PLENTY)) == ColdPiece()
            assert archive.health() == ""

    async def test_messages_are_returned_as_registered(self, tmp_path: Path) -> None:
        registered = (
            Registered("a", b"", NOON, "e", 1),
            Registered("a", b'{"n":1.10}', NOON + 0.000001, "e", 2, exclude_socket="sid", broadcast_type="whisper"),
            Registered("a", "\u2028 \U0001f600".encode(), NOON + 0.999999, "e", 3, broadcast_type="presence"),
            Registered("a", b"4", NOON + 1, "e", 4, fields=MessageFields(LAST_KSUID, 2**64 - 1)),
        )
        await self.store(tmp_path, registered)
        async with self.running(tmp_path) as archive:
            assert await archive.read("a", HistoryRange("a", "e", 1, 4, 10)) == ColdPiece(registered)
            assert archive.health() == ""

    async def test_range_is_exact_at_both_ends(self, tmp_path: Path) -> None:
        for begin in (1, 21, 41):
            await self.store(tmp_path, run("a", begin, begin + 19))
        async with self.running(tmp_path) as archive:
            for first, last in ((1, 60), (1, 1), (17, 31), (60, 60), (30, 29)):
                found = await archive.read("a", HistoryRange("a", "e", first, last, PLENTY))
                assert found == ColdPiece(run("a", first, last)), (first, last)

    async def test_range_may_exceed_the_stored_messages(self, tmp_path: Path) -> None:
        await self.store(tmp_path, run("a", 11, 20))
        async with self.running(tmp_path) as archive:
            assert await archive.read("a", HistoryRange("a", "e", 1, PLENTY, PLENTY)) == ColdPiece(run("a", 11, 20))
            assert await archive.read("a", HistoryRange("a", "e", 1, 10, PLENTY)) == ColdPiece()
            assert await archive.read("a", HistoryRange("a", "e", 21, PLENTY, PLENTY)) == ColdPiece()

    async def test_missing_offsets_are_not_filled(self, tmp_path: Path) -> None:
        stored = (*run("a", 1, 5), *run("a", 9, 12))
        await self.store(tmp_path, stored)
        async with self.running(tmp_path) as archive:
            assert await archive.read("a", HistoryRange("a", "e", 3, 10, PLENTY)) == ColdPiece(stored[2:7])

    async def test_streams_of_one_batch_are_returned_separately_in_order(self, tmp_path: Path) -> None:
        for first in range(1, 41, 10):
            mixed = [message(stream, offset) for offset in range(first, first + 10) for stream in ("b", "a", "c")]
            await self.store(tmp_path, mixed)
        async with self.running(tmp_path) as archive:
            for stream in "abc":
                expected = tuple(message(stream, offset) for offset in range(1, 41))
                assert await archive.read(stream, HistoryRange(stream, "e", 1, 40, PLENTY)) == ColdPiece(expected)

    async def test_messages_stored_out_of_order_are_sorted_by_offset(self, tmp_path: Path) -> None:
        """The newest batch is in order: it may be in the journal still, where one writer wrote it."""
        for first in (21, 1):
            await self.store(tmp_path, [each for stream in "ba" for each in run(stream, first, first + 9)])
        await self.store(tmp_path, tuple(reversed(run("a", 11, 20))))
        await self.store(tmp_path, run("a", 31, 40))
        async with self.running(tmp_path) as archive:
            assert await archive.read("a", HistoryRange("a", "e", 1, PLENTY, PLENTY)) == ColdPiece(run("a", 1, 40))
            assert await archive.read("a", HistoryRange("a", "e", 8, 33, PLENTY)) == ColdPiece(run("a", 8, 33))
            assert await everything(archive, "a", "e", 1, 40, 7) == run("a", 1, 40)

    async def test_message_stored_twice_is_returned_once(self, tmp_path: Path) -> None:
        await self.store(tmp_path, run("a", 1, 20))
        await self.store(tmp_path, run("a", 11, 30))
        await self.store(tmp_path, (*run("a", 25, 35), *run("a", 31, 40)))
        async with self.running(tmp_path) as archive:
            assert await archive.read("a", HistoryRange("a", "e", 1, 40, PLENTY)) == ColdPiece(run("a", 1, 40))

    async def test_next_read_includes_later_batches(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as archive:
            for first in (1, 11, 21):
                await self.store(tmp_path, run("a", first, first + 9))
                assert await archive.read("a", HistoryRange("a", "e", 1, PLENTY, PLENTY)) == ColdPiece(run("a", 1, first + 9))

    # --- streams and epochs -------------------------------------------------------------------------------------------

    async def test_unknown_stream_or_epoch_returns_nothing(self, tmp_path: Path) -> None:
        await self.store(tmp_path, run("b", 1, 20))
        async with self.running(tmp_path) as archive:
            for stream, epoch in (("a", "e"), ("ba", "e"), ("c", "e"), ("b", ""), ("b", "d"), ("b", "f"), ("b", "E")):
                assert await archive.read(stream, HistoryRange(stream, epoch, 1, 20, PLENTY)) == ColdPiece(), (stream, epoch)

    async def test_epochs_of_a_stream_are_kept_apart(self, tmp_path: Path) -> None:
        await self.store(tmp_path, run("a", 1, 20, "old"))
        await self.store(tmp_path, (*run("a", 21, 25, "old"), *run("a", 1, 10, "new")))
        await self.store(tmp_path, run("a", 11, 22, "new"))
        async with self.running(tmp_path) as archive:
            assert await archive.read("a", HistoryRange("a", "old", 1, PLENTY, PLENTY)) == ColdPiece(run("a", 1, 25, "old"))
            assert await archive.read("a", HistoryRange("a", "new", 1, PLENTY, PLENTY)) == ColdPiece(run("a", 1, 22, "new"))
            assert await archive.read("a", HistoryRange("a", "old", 19, 22, PLENTY)) == ColdPiece(run("a", 19, 22, "old"))

    async def test_unusual_stream_names_are_kept_apart(self, tmp_path: Path) -> None:
        for offset in (1, 2):
            await self.store(tmp_path, [message(name, offset) for name in ODD_NAMES])
        async with self.running(tmp_path) as archive:
            for name in ODD_NAMES:
                expected = (message(name, 1), message(name, 2))
                assert await archive.read(name, HistoryRange(name, "e", 1, 10, PLENTY)) == ColdPiece(expected), repr(name)

    async def test_streams_with_one_partition_key_are_kept_apart(self, tmp_path: Path) -> None:
        streams = ["room", *(f"room:{number}" for number in range(10))]
        for first in (1, 11):
            await self.store(tmp_path, [each for stream in streams for each in run(stream, first, first + 9)])
        async with self.running(tmp_path) as archive:
            for stream in streams:
                assert await archive.read("room", HistoryRange(stream, "e", 1, 20, PLENTY)) == ColdPiece(run(stream, 1, 20))

    # --- bounds -------------------------------------------------------------------------------------------------------

    async def test_limited_read_reports_more(self, tmp_path: Path) -> None:
        for first in (1, 21):
            await self.store(tmp_path, run("a", first, first + 19))
        async with self.running(tmp_path) as archive:
            assert await archive.read("a", HistoryRange("a", "e", 15, 40, 10)) == ColdPiece(run("a", 15, 24), more=True)
            assert await archive.read("a", HistoryRange("a", "e", 1, 40, 20)) == ColdPiece(run("a", 1, 20), more=True)
            assert await archive.read("a", HistoryRange("a", "e", 1, 40, 40)) == ColdPiece(run("a", 1, 40))
            assert await archive.read("a", HistoryRange("a", "e", 31, PLENTY, 10)) == ColdPiece(run("a", 31, 40))

    async def test_consecutive_reads_return_the_complete_range(self, tmp_path: Path) -> None:
        for first in (1, 21, 41):
            await self.store(tmp_path, [each for stream in "ab" for each in run(stream, first, first + 19)])
        async with self.running(tmp_path) as archive:
            for limit in (1, 7, 20, 100):
                assert await everything(archive, "b", "e", 5, 55, limit) == run("b", 5, 55), limit

    async def test_large_messages_are_returned_completely(self, tmp_path: Path) -> None:
        stored = tuple(Registered("a", b"%d" % offset * LARGE, NOON, "e", offset) for offset in range(1, 10))
        stored += tuple(Registered("a", b"x" * LARGE, NOON, "e", offset) for offset in range(10, 25))
        await self.store(tmp_path, stored[:20])
        await self.store(tmp_path, stored[20:])
        async with self.running(tmp_path) as archive:
            assert await everything(archive, "a", "e", 1, 24, PLENTY) == stored

    # --- time ---------------------------------------------------------------------------------------------------------

    async def test_since_omits_only_older_messages(self, tmp_path: Path) -> None:
        newest = MINUTES_TO_MIDNIGHT + 20
        await self.store(tmp_path, run("a", 1, MINUTES_TO_MIDNIGHT - 5))
        await self.store(tmp_path, run("a", MINUTES_TO_MIDNIGHT - 4, newest))
        async with self.running(tmp_path) as archive:
            for oldest in (1, 2, MINUTES_TO_MIDNIGHT, MINUTES_TO_MIDNIGHT + 1, newest):
                for since in (NOON + 60 * oldest, NOON + 60 * oldest - 59):
                    found = await archive.read("a", HistoryRange("a", "e", 1, PLENTY, PLENTY, since))
                    assert found == ColdPiece(run("a", oldest, newest)), (oldest, since)

    async def test_since_works_with_a_limit(self, tmp_path: Path) -> None:
        for first in (1, 21):
            await self.store(tmp_path, run("a", first, first + 19))
        async with self.running(tmp_path) as archive:
            since = NOON + 60 * 15
            assert await archive.read("a", HistoryRange("a", "e", 1, 40, 10, since)) == ColdPiece(run("a", 15, 24), more=True)
            assert await archive.read("a", HistoryRange("a", "e", 25, 40, 16, since)) == ColdPiece(run("a", 25, 40))

    async def test_since_includes_a_message_of_that_moment(self, tmp_path: Path) -> None:
        # A broker's clock is finer than the microseconds that may be kept.
        moments = [NOON + offset * 0.0000012 for offset in range(1, 30)]
        stored = [Registered("a", b"1", moment, "e", offset) for offset, moment in enumerate(moments, 1)]
        await self.store(tmp_path, stored)
        async with self.running(tmp_path) as archive:
            for each in stored:
                piece = await archive.read("a", HistoryRange("a", "e", each.offset, PLENTY, PLENTY, each.timestamp))
                assert [found.offset for found in piece.messages] == list(range(each.offset, 30))

    async def test_since_accepts_the_far_future_and_past(self, tmp_path: Path) -> None:
        await self.store(tmp_path, run("a", 1, 10))
        async with self.running(tmp_path) as archive:
            for since in (NOON * 2, 1e15, float("inf")):
                assert await archive.read("a", HistoryRange("a", "e", 1, 10, PLENTY, since)) == ColdPiece()
            for since in (-1.0, 0.0, 1e-9):
                assert await archive.read("a", HistoryRange("a", "e", 1, 10, PLENTY, since)) == ColdPiece(run("a", 1, 10))

    # --- beside each other, faults and the end ------------------------------------------------------------------------

    async def test_read_does_not_block_the_event_loop(self, tmp_path: Path) -> None:
        await self.store(tmp_path, run("a", 1, 20))
        async with self.running(tmp_path) as archive:
            reading = asyncio.ensure_future(archive.read("a", HistoryRange("a", "e", 1, 20, PLENTY)))
            await asyncio.sleep(0)
            assert not reading.done(), "the read was made on the event loop"
            assert await reading == ColdPiece(run("a", 1, 20))

    async def test_concurrent_reads_return_their_own_ranges(self, tmp_path: Path) -> None:
        await self.store(tmp_path, [each for stream in "abcd" for each in run(stream, 1, 30)])
        async with self.running(tmp_path) as archive:
            asked = [(stream, first) for first in range(1, 9) for stream in "abcd"]
            found = await asyncio.gather(
                *(archive.read(stream, HistoryRange(stream, "e", first, first + 9, PLENTY)) for stream, first in asked)
            )
            assert found == [ColdPiece(run(stream, first, first + 9)) for stream, first in asked]

    async def test_cancelled_read_does_not_affect_others(self, tmp_path: Path) -> None:
        await self.store(tmp_path, run("a", 1, 20))
        async with self.running(tmp_path) as archive:
            gone = asyncio.ensure_future(archive.read("a", HistoryRange("a", "e", 1, 20, PLENTY)))
            await asyncio.sleep(0)
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
            assert await archive.read("a", HistoryRange("a", "e", 1, 20, PLENTY)) == ColdPiece(run("a", 1, 20))
            assert archive.gauges()["archive_reads_waiting"] == 0

    async def test_unreadable_archive_is_unavailable_until_it_is_repaired(self, tmp_path: Path) -> None:
        for first in (1, 11):
            await self.store(tmp_path, run("a", first, first + 9))
        async with self.running(tmp_path) as archive:
            with self.unreadable(tmp_path):
                for _ in range(2):
                    with pytest.raises(Unavailable):
                        await archive.read("a", HistoryRange("a", "e", 1, 20, PLENTY))
            assert await archive.read("a", HistoryRange("a", "e", 1, 20, PLENTY)) == ColdPiece(run("a", 1, 20))
            assert archive.health() == ""

    async def test_archive_damaged_after_a_read_returns_no_wrong_messages(self, tmp_path: Path) -> None:
        for first in (1, 11):
            await self.store(tmp_path, run("a", first, first + 9))
        async with self.running(tmp_path) as archive:
            await archive.read("a", HistoryRange("a", "e", 1, 5, PLENTY))
            with self.unreadable(tmp_path):
                assert await _outcome(archive) in (ColdPiece(run("a", 1, 20)), Unavailable)
            assert await archive.read("a", HistoryRange("a", "e", 1, 20, PLENTY)) == ColdPiece(run("a", 1, 20))

    async def test_gauges_have_the_prefix_of_the_archive(self, tmp_path: Path) -> None:
        await self.store(tmp_path, run("a", 1, 20))
        async with self.running(tmp_path) as archive:
            await archive.read("a", HistoryRange("a", "e", 1, 20, PLENTY))
            gauges = archive.gauges()
            assert gauges["archive_reads_waiting"] == 0
            assert all(name.startswith("archive_") and value >= 0 for name, value in gauges.items()), gauges

    async def test_pending_reads_at_stop_succeed_or_are_unavailable(self, tmp_path: Path) -> None:
        await self.store(tmp_path, run("a", 1, 20))
        archive = self.make(tmp_path)
        reading = [asyncio.ensure_future(_outcome(archive)) for _ in range(20)]
        await asyncio.sleep(0)
        await archive.stop()
        for outcome in await asyncio.gather(*reading, return_exceptions=True):
            assert outcome in (ColdPiece(run("a", 1, 20)), Unavailable)

    async def test_stopped_archive_is_unavailable(self, tmp_path: Path) -> None:
        await self.store(tmp_path, run("a", 1, 20))
        archive = self.make(tmp_path)
        await archive.stop()
        await archive.stop()
        with pytest.raises(Unavailable):
            await archive.read("a", HistoryRange("a", "e", 1, 20, PLENTY))


async def everything(archive: Archive, stream: str, epoch: str, first: int, last: int, limit: int) -> tuple[Registered, ...]:
    """A range read piece by piece, as callers do: each begins after the last message of the one before."""
    found: list[Registered] = []
    more = True
    while more:
        piece = await archive.read(stream, HistoryRange(stream, epoch, found[-1].offset + 1 if found else first, last, limit))
        assert len(piece.messages) <= limit
        assert piece.messages or not piece.more, "`more` is set, but there is no message to continue from"
        found += piece.messages
        more = piece.more
    return tuple(found)


async def _outcome(archive: Archive) -> ColdPiece | type[Unavailable]:
    try:
        return await archive.read("a", HistoryRange("a", "e", 1, 20, PLENTY))
    except Unavailable:
        return Unavailable

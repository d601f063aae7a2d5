"""What every `ports.Archive` must do, as one suite of tests: exact ranges, each message once, no wrong answer in a fault.

Invariant: it knows the port and nothing of how messages are kept.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

import pytest

from ropewalk.model.errors import Unavailable
from ropewalk.model.history import ColdPiece
from ropewalk.model.messages import LAST_KSUID, MessageFields, Registered, fields_of
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
    fields = fields_of("", 0, key if key != stream else "")
    return Registered(stream, payload, NOON + 60 * minute, epoch, offset, fields=fields)


def run(stream: str, first: int, last: int, epoch: str = "e") -> tuple[Registered, ...]:
    """Offsets [first, last], one a minute."""
    return tuple(message(stream, offset, epoch, offset) for offset in range(first, last + 1))


def key_of(stream: str) -> str:
    """The partition key of a stream in these tests: what stands before a colon, or the whole name."""
    return stream.partition(":")[0] or stream


class ArchiveRig:
    """A suite's hooks. One directory is one archive."""

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

    async def test_an_archive_without_anything_has_nothing_and_is_healthy(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as archive:
            assert await archive.read("a", "a", "e", 1, PLENTY, PLENTY) == ColdPiece()
            assert archive.health() == ""

    async def test_messages_come_back_as_they_were_registered(self, tmp_path: Path) -> None:
        told = (
            Registered("a", b"", NOON, "e", 1),
            Registered("a", b'{"n":1.10}', NOON + 0.000001, "e", 2, exclude_socket="sid", broadcast_type="whisper"),
            Registered("a", "\u2028 \U0001f600".encode(), NOON + 0.999999, "e", 3, broadcast_type="presence"),
            Registered("a", b"4", NOON + 1, "e", 4, fields=MessageFields(LAST_KSUID, 2**64 - 1)),
        )
        await self.store(tmp_path, told)
        async with self.running(tmp_path) as archive:
            assert await archive.read("a", "a", "e", 1, 4, 10) == ColdPiece(told)
            assert archive.health() == ""

    @pytest.mark.parametrize(("first", "last"), [(1, 60), (1, 1), (17, 31), (60, 60), (30, 29)])
    async def test_a_range_is_exact_at_both_ends(self, tmp_path: Path, first: int, last: int) -> None:
        for begin in (1, 21, 41):
            await self.store(tmp_path, run("a", begin, begin + 19))
        async with self.running(tmp_path) as archive:
            assert await archive.read("a", "a", "e", first, last, PLENTY) == ColdPiece(run("a", first, last))

    async def test_a_range_may_reach_beyond_what_is_there(self, tmp_path: Path) -> None:
        await self.store(tmp_path, run("a", 11, 20))
        async with self.running(tmp_path) as archive:
            assert await archive.read("a", "a", "e", 1, PLENTY, PLENTY) == ColdPiece(run("a", 11, 20))
            assert await archive.read("a", "a", "e", 1, 10, PLENTY) == ColdPiece()
            assert await archive.read("a", "a", "e", 21, PLENTY, PLENTY) == ColdPiece()

    async def test_holes_stay_holes(self, tmp_path: Path) -> None:
        stored = (*run("a", 1, 5), *run("a", 9, 12))
        await self.store(tmp_path, stored)
        async with self.running(tmp_path) as archive:
            assert await archive.read("a", "a", "e", 3, 10, PLENTY) == ColdPiece(stored[2:7])

    async def test_batches_of_many_streams_come_apart_and_in_order(self, tmp_path: Path) -> None:
        for first in range(1, 41, 10):
            mixed = [message(stream, offset) for offset in range(first, first + 10) for stream in ("b", "a", "c")]
            await self.store(tmp_path, mixed)
        async with self.running(tmp_path) as archive:
            for stream in "abc":
                expected = tuple(message(stream, offset) for offset in range(1, 41))
                assert await archive.read(stream, stream, "e", 1, 40, PLENTY) == ColdPiece(expected)

    async def test_what_was_stored_out_of_order_comes_in_the_order_of_offsets(self, tmp_path: Path) -> None:
        """The newest batch is in order: it may be in the journal still, where one writer wrote it."""
        for first in (21, 1):
            await self.store(tmp_path, [each for stream in "ba" for each in run(stream, first, first + 9)])
        await self.store(tmp_path, tuple(reversed(run("a", 11, 20))))
        await self.store(tmp_path, run("a", 31, 40))
        async with self.running(tmp_path) as archive:
            assert await archive.read("a", "a", "e", 1, PLENTY, PLENTY) == ColdPiece(run("a", 1, 40))
            assert await archive.read("a", "a", "e", 8, 33, PLENTY) == ColdPiece(run("a", 8, 33))
            assert await everything(archive, "a", "e", 1, 40, 7) == run("a", 1, 40)

    async def test_a_message_that_was_stored_twice_comes_once(self, tmp_path: Path) -> None:
        await self.store(tmp_path, run("a", 1, 20))
        await self.store(tmp_path, run("a", 11, 30))
        await self.store(tmp_path, (*run("a", 25, 35), *run("a", 31, 40)))
        async with self.running(tmp_path) as archive:
            assert await archive.read("a", "a", "e", 1, 40, PLENTY) == ColdPiece(run("a", 1, 40))

    async def test_what_is_stored_later_is_seen_by_the_next_read(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as archive:
            for first in (1, 11, 21):
                await self.store(tmp_path, run("a", first, first + 9))
                assert await archive.read("a", "a", "e", 1, PLENTY, PLENTY) == ColdPiece(run("a", 1, first + 9))

    # --- streams and epochs -------------------------------------------------------------------------------------------

    async def test_a_stream_or_an_epoch_never_heard_of_has_nothing(self, tmp_path: Path) -> None:
        await self.store(tmp_path, run("b", 1, 20))
        async with self.running(tmp_path) as archive:
            for stream, epoch in (("a", "e"), ("ba", "e"), ("c", "e"), ("b", ""), ("b", "d"), ("b", "f"), ("b", "E")):
                assert await archive.read(stream, stream, epoch, 1, 20, PLENTY) == ColdPiece(), (stream, epoch)

    async def test_two_epochs_of_a_stream_are_not_mixed(self, tmp_path: Path) -> None:
        await self.store(tmp_path, run("a", 1, 20, "old"))
        await self.store(tmp_path, (*run("a", 21, 25, "old"), *run("a", 1, 10, "new")))
        await self.store(tmp_path, run("a", 11, 22, "new"))
        async with self.running(tmp_path) as archive:
            assert await archive.read("a", "a", "old", 1, PLENTY, PLENTY) == ColdPiece(run("a", 1, 25, "old"))
            assert await archive.read("a", "a", "new", 1, PLENTY, PLENTY) == ColdPiece(run("a", 1, 22, "new"))
            assert await archive.read("a", "a", "old", 19, 22, PLENTY) == ColdPiece(run("a", 19, 22, "old"))

    async def test_streams_with_odd_names_do_not_get_mixed_up(self, tmp_path: Path) -> None:
        for offset in (1, 2):
            await self.store(tmp_path, [message(name, offset) for name in ODD_NAMES])
        async with self.running(tmp_path) as archive:
            for name in ODD_NAMES:
                expected = (message(name, 1), message(name, 2))
                assert await archive.read(name, name, "e", 1, 10, PLENTY) == ColdPiece(expected), repr(name)

    async def test_streams_that_share_a_partition_key_come_apart(self, tmp_path: Path) -> None:
        streams = ["room", *(f"room:{number}" for number in range(10))]
        for first in (1, 11):
            await self.store(tmp_path, [each for stream in streams for each in run(stream, first, first + 9)])
        async with self.running(tmp_path) as archive:
            for stream in streams:
                assert await archive.read(stream, "room", "e", 1, 20, PLENTY) == ColdPiece(run(stream, 1, 20))

    # --- bounds -------------------------------------------------------------------------------------------------------

    async def test_an_answer_that_was_cut_at_its_limit_says_so(self, tmp_path: Path) -> None:
        for first in (1, 21):
            await self.store(tmp_path, run("a", first, first + 19))
        async with self.running(tmp_path) as archive:
            assert await archive.read("a", "a", "e", 15, 40, 10) == ColdPiece(run("a", 15, 24), more=True)
            assert await archive.read("a", "a", "e", 1, 40, 20) == ColdPiece(run("a", 1, 20), more=True)
            assert await archive.read("a", "a", "e", 1, 40, 40) == ColdPiece(run("a", 1, 40))
            assert await archive.read("a", "a", "e", 31, PLENTY, 10) == ColdPiece(run("a", 31, 40))

    @pytest.mark.parametrize("limit", [1, 7, 20, 100])
    async def test_asking_on_brings_everything_without_a_seam(self, tmp_path: Path, limit: int) -> None:
        for first in (1, 21, 41):
            await self.store(tmp_path, [each for stream in "ab" for each in run(stream, first, first + 19)])
        async with self.running(tmp_path) as archive:
            assert await everything(archive, "b", "e", 5, 55, limit) == run("b", 5, 55)

    async def test_large_messages_all_come_in_however_many_answers(self, tmp_path: Path) -> None:
        stored = tuple(Registered("a", b"%d" % offset * LARGE, NOON, "e", offset) for offset in range(1, 10))
        stored += tuple(Registered("a", b"x" * LARGE, NOON, "e", offset) for offset in range(10, 25))
        await self.store(tmp_path, stored[:20])
        await self.store(tmp_path, stored[20:])
        async with self.running(tmp_path) as archive:
            assert await everything(archive, "a", "e", 1, 24, PLENTY) == stored

    # --- time ---------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("oldest", [1, 2, MINUTES_TO_MIDNIGHT, MINUTES_TO_MIDNIGHT + 1, MINUTES_TO_MIDNIGHT + 20])
    async def test_since_leaves_out_what_is_older_and_nothing_else(self, tmp_path: Path, oldest: int) -> None:
        newest = MINUTES_TO_MIDNIGHT + 20
        await self.store(tmp_path, run("a", 1, MINUTES_TO_MIDNIGHT - 5))
        await self.store(tmp_path, run("a", MINUTES_TO_MIDNIGHT - 4, newest))
        async with self.running(tmp_path) as archive:
            since = NOON + 60 * oldest
            assert await archive.read("a", "a", "e", 1, PLENTY, PLENTY, since) == ColdPiece(run("a", oldest, newest))
            assert await archive.read("a", "a", "e", 1, PLENTY, PLENTY, since - 59) == ColdPiece(run("a", oldest, newest))

    async def test_since_and_a_limit_hold_together(self, tmp_path: Path) -> None:
        for first in (1, 21):
            await self.store(tmp_path, run("a", first, first + 19))
        async with self.running(tmp_path) as archive:
            since = NOON + 60 * 15
            assert await archive.read("a", "a", "e", 1, 40, 10, since) == ColdPiece(run("a", 15, 24), more=True)
            assert await archive.read("a", "a", "e", 25, 40, 16, since) == ColdPiece(run("a", 25, 40))

    async def test_since_the_very_moment_of_a_message_includes_it(self, tmp_path: Path) -> None:
        # A broker's clock is finer than the microseconds that may be kept.
        moments = [NOON + offset * 0.0000012 for offset in range(1, 30)]
        stored = [Registered("a", b"1", moment, "e", offset) for offset, moment in enumerate(moments, 1)]
        await self.store(tmp_path, stored)
        async with self.running(tmp_path) as archive:
            for each in stored:
                piece = await archive.read("a", "a", "e", each.offset, PLENTY, PLENTY, each.timestamp)
                assert [found.offset for found in piece.messages] == list(range(each.offset, 30))

    async def test_nothing_is_as_new_as_the_far_future_and_everything_as_the_far_past(self, tmp_path: Path) -> None:
        await self.store(tmp_path, run("a", 1, 10))
        async with self.running(tmp_path) as archive:
            for since in (NOON * 2, 1e15, float("inf")):
                assert await archive.read("a", "a", "e", 1, 10, PLENTY, since) == ColdPiece()
            for since in (-1.0, 0.0, 1e-9):
                assert await archive.read("a", "a", "e", 1, 10, PLENTY, since) == ColdPiece(run("a", 1, 10))

    # --- beside each other, faults and the end ------------------------------------------------------------------------

    async def test_the_event_loop_goes_on_while_the_archive_is_read(self, tmp_path: Path) -> None:
        await self.store(tmp_path, run("a", 1, 20))
        async with self.running(tmp_path) as archive:
            reading = asyncio.ensure_future(archive.read("a", "a", "e", 1, 20, PLENTY))
            await asyncio.sleep(0)
            assert not reading.done(), "the read was made on the event loop"
            assert await reading == ColdPiece(run("a", 1, 20))

    async def test_reads_beside_each_other_get_their_own_answers(self, tmp_path: Path) -> None:
        await self.store(tmp_path, [each for stream in "abcd" for each in run(stream, 1, 30)])
        async with self.running(tmp_path) as archive:
            asked = [(stream, first) for first in range(1, 9) for stream in "abcd"]
            found = await asyncio.gather(
                *(archive.read(stream, stream, "e", first, first + 9, PLENTY) for stream, first in asked)
            )
            assert found == [ColdPiece(run(stream, first, first + 9)) for stream, first in asked]

    async def test_a_caller_who_is_gone_costs_nobody_else_anything(self, tmp_path: Path) -> None:
        await self.store(tmp_path, run("a", 1, 20))
        async with self.running(tmp_path) as archive:
            gone = asyncio.ensure_future(archive.read("a", "a", "e", 1, 20, PLENTY))
            await asyncio.sleep(0)
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
            assert await archive.read("a", "a", "e", 1, 20, PLENTY) == ColdPiece(run("a", 1, 20))
            assert archive.gauges()["archive_reads_waiting"] == 0

    async def test_what_cannot_be_read_is_unavailable_until_it_can(self, tmp_path: Path) -> None:
        for first in (1, 11):
            await self.store(tmp_path, run("a", first, first + 9))
        async with self.running(tmp_path) as archive:
            with self.unreadable(tmp_path):
                for _ in range(2):
                    with pytest.raises(Unavailable):
                        await archive.read("a", "a", "e", 1, 20, PLENTY)
            assert await archive.read("a", "a", "e", 1, 20, PLENTY) == ColdPiece(run("a", 1, 20))
            assert archive.health() == ""

    async def test_what_becomes_unreadable_later_is_never_answered_wrongly(self, tmp_path: Path) -> None:
        for first in (1, 11):
            await self.store(tmp_path, run("a", first, first + 9))
        async with self.running(tmp_path) as archive:
            await archive.read("a", "a", "e", 1, 5, PLENTY)
            with self.unreadable(tmp_path):
                assert await _outcome(archive) in (ColdPiece(run("a", 1, 20)), Unavailable)
            assert await archive.read("a", "a", "e", 1, 20, PLENTY) == ColdPiece(run("a", 1, 20))

    async def test_gauges_are_numbers_under_names_of_the_archive(self, tmp_path: Path) -> None:
        await self.store(tmp_path, run("a", 1, 20))
        async with self.running(tmp_path) as archive:
            await archive.read("a", "a", "e", 1, 20, PLENTY)
            gauges = archive.gauges()
            assert gauges["archive_reads_waiting"] == 0
            assert all(name.startswith("archive_") and value >= 0 for name, value in gauges.items()), gauges

    async def test_reads_under_way_when_it_stops_are_answered_or_unavailable(self, tmp_path: Path) -> None:
        await self.store(tmp_path, run("a", 1, 20))
        archive = self.make(tmp_path)
        reading = [asyncio.ensure_future(_outcome(archive)) for _ in range(20)]
        await asyncio.sleep(0)
        await archive.stop()
        for outcome in await asyncio.gather(*reading, return_exceptions=True):
            assert outcome in (ColdPiece(run("a", 1, 20)), Unavailable)

    async def test_after_a_stop_it_is_unavailable_and_stopping_again_is_harmless(self, tmp_path: Path) -> None:
        await self.store(tmp_path, run("a", 1, 20))
        archive = self.make(tmp_path)
        await archive.stop()
        await archive.stop()
        with pytest.raises(Unavailable):
            await archive.read("a", "a", "e", 1, 20, PLENTY)


async def everything(archive: Archive, stream: str, epoch: str, first: int, last: int, limit: int) -> tuple[Registered, ...]:
    """A range read piece by piece, as callers do: each begins after the last message of the one before."""
    found: list[Registered] = []
    more = True
    while more:
        piece = await archive.read(stream, stream, epoch, found[-1].offset + 1 if found else first, last, limit)
        assert len(piece.messages) <= limit
        assert piece.messages or not piece.more, "it says that there is more, and not where to go on"
        found += piece.messages
        more = piece.more
    return tuple(found)


async def _outcome(archive: Archive) -> ColdPiece | type[Unavailable]:
    try:
        return await archive.read("a", "a", "e", 1, 20, PLENTY)
    except Unavailable:
        return Unavailable

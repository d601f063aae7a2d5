"""Group commit: a group is written to all shards or to none, also when the disk fails."""

import asyncio
import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ropewalk.adapters.journals.arrow import ArrowJournal, writer
from ropewalk.model.errors import Unavailable
from ropewalk.model.journal import Row
from ropewalk.model.limits import JournalLimits
from ropewalk.testing.clock import ManualClock
from tests.journals import QuickDisk, by_shard, publication, read_all, running, session
from tests.waiting import until


class NarrowDisk(QuickDisk):
    """Writes `room` more bytes and then fails, like a full disk."""

    room: float = float("inf")
    sync_error: int = 0

    def write(self, fd: int, data: bytes, at: int) -> None:
        fits = int(min(len(data), self.room))
        super().write(fd, data[:fits], at)
        self.room -= fits
        if fits < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")

    def sync(self, fd: int) -> None:
        if self.sync_error:
            raise OSError(self.sync_error, "Input/output error")


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """The kernel writes up to this size and then returns EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def spread(count: int, first: int = 1, value: bytes = b"") -> list[Row]:
    """Rows for all shards."""
    return [publication(f"stream {number}", first, value) for number in range(count)]


def kept(directory: Path) -> dict[str, int]:
    return {
        path.name + path.parent.name: path.stat().st_size for path in directory.rglob("*") if path.suffix in (".arrow", ".log")
    }


@pytest.mark.parametrize("room", [0, 1, 700, 2500, 5000])
async def test_group_larger_than_the_free_space_is_refused_and_leaves_no_bytes(tmp_path: Path, room: int) -> None:
    disk = NarrowDisk()
    async with running(tmp_path, ManualClock(), disk=disk) as (journal, _):
        await journal.write(spread(10))
        before, files = await read_all(journal), kept(tmp_path)
        disk.room = room
        with pytest.raises(Unavailable, match="No space left"):
            await journal.write(spread(30, 2, b"x" * 1000))
        assert await read_all(journal) == before
        assert kept(tmp_path) == files
        assert "No space left" in journal.health()
        disk.room = float("inf")
        await journal.write(spread(30, 2))
        assert journal.health() == ""
    async with running(tmp_path, ManualClock()) as (journal, recovered):
        assert recovered.reset_shards == ()
        assert [list(rows.values()) for rows in (await read_all(journal)).values()] == by_shard(spread(10) + spread(30, 2))


async def test_health_recovers_without_a_write_when_there_is_space_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY", 0.01)
    disk = NarrowDisk()
    async with running(tmp_path, ManualClock(), disk=disk) as (journal, _):
        disk.room = 10
        with pytest.raises(Unavailable):
            await journal.write(spread(1))
        disk.room = float("inf")
        await until(lambda: journal.health() == "")


async def test_group_that_cannot_be_synced_is_refused_and_absent_after_a_restart(tmp_path: Path) -> None:
    disk = NarrowDisk()
    async with running(tmp_path, ManualClock(), disk=disk, durability="fsync") as (journal, _):
        await journal.write(spread(10))
        disk.sync_error = errno.EIO
        with pytest.raises(Unavailable, match="Input/output"):
            await journal.write(spread(10, 2))
        disk.sync_error = 0
    async with running(tmp_path, ManualClock()) as (journal, recovered):
        assert recovered.reset_shards == ()
        assert sorted(map(repr, recovered.rows)) == sorted(map(repr, spread(10)))


async def test_partially_written_group_is_truncated(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock(), shards=1) as (journal, _):
        await journal.write([publication("a", 1)])
        (segment,) = tmp_path.rglob("*.arrow")
        size = segment.stat().st_size
        with files_no_larger_than(size + 1000), pytest.raises(Unavailable):
            await journal.write([publication("a", 2, b"x" * 5000)])
        assert segment.stat().st_size == size
        await journal.write([publication("a", 2)])
        assert [row.offset for row in (await read_all(journal))[0].values()] == [1, 2]


async def test_unacknowledged_rows_are_kept_while_the_disk_is_full_and_written_in_order(tmp_path: Path) -> None:
    disk = NarrowDisk()
    async with running(tmp_path, ManualClock(), shards=1, disk=disk) as (journal, _):
        disk.room = 0
        journal.write_nowait([session("one")])
        await until(lambda: bool(journal.health()))
        journal.write_nowait([session("two")])
        disk.room = float("inf")
        await journal.write([publication("a", 1)])
        assert [row.key for row in (await read_all(journal))[0].values()] == ["one", "two", "a"]
        assert journal.gauges()["journal_dropped_rows"] == 0


async def test_full_queue_drops_unacknowledged_rows_and_refuses_writes(tmp_path: Path) -> None:
    disk = NarrowDisk()
    async with running(tmp_path, ManualClock(), disk=disk, queue_size=10_000) as (journal, _):
        disk.room = 0
        journal.write_nowait([session("one", detail="x" * 6000)])
        await until(lambda: bool(journal.health()) and journal.gauges()["journal_queue_rows"] == 1)
        journal.write_nowait([session("two", detail="x" * 6000)])
        assert journal.gauges()["journal_dropped_rows"] == 1
        with pytest.raises(Unavailable):
            await journal.write([publication("a", 1, b"x" * 6000)])
        disk.room = float("inf")


async def test_row_that_cannot_be_encoded_is_refused_and_others_are_written(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock()) as (journal, _):
        answers = await asyncio.gather(
            journal.write([publication("a", 1)]),
            journal.write([publication("half a pair", 1, uid="\ud800")]),
            journal.write([publication("b", 1)]),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == [type(None), Unavailable, type(None)]
        assert journal.health() == ""
    async with running(tmp_path, ManualClock()) as (journal, recovered):
        assert sorted(row.stream for row in recovered.rows) == ["a", "b"]


async def test_large_group_is_split_into_batches(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock(), shards=1) as (journal, _):
        await journal.write([publication("a", offset) for offset in range(1, 20_001)])
        assert journal.gauges()["journal_groups"] == 1
        assert journal.gauges()["journal_batches"] == 3


async def test_concurrent_writers_share_groups_and_keep_their_order(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock(), shards=1) as (journal, _):
        await asyncio.gather(*(journal.write([publication("a", offset)]) for offset in range(1, 501)))
        assert [row.offset for row in (await read_all(journal))[0].values()] == list(range(1, 501))
        assert journal.gauges()["journal_groups"] < 500


async def test_journal_with_memory_durability_is_instant(tmp_path: Path) -> None:
    journal = ArrowJournal(tmp_path, ManualClock(), JournalLimits(), durability="memory")
    assert journal.instant

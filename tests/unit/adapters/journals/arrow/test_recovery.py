"""Recovery distinguishes lost rows from rows that were never acknowledged."""

import errno
import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ropewalk.model.errors import Unavailable, UserMistake
from ropewalk.model.journal import GENERATION_BITS, Recovered, RowKind, StreamTip, find_holes
from ropewalk.testing.clock import ManualClock
from tests.journals import EVER, QuickDisk, as_if_killed, by_shard, made, publication, read_all, running, session

NAMES = ("journal.json", "journal.copy.json")


async def killed(directory: Path, **options: Any) -> Path:
    """A journal with two groups over all shards, killed."""
    async with running(directory / "alive", ManualClock(), **options) as (journal, _):
        await journal.write([publication(f"stream {number}", 1) for number in range(20)])
        await journal.write([*(publication(f"stream {number}", 2) for number in range(20)), session("sid")])
        return as_if_killed(directory / "alive", directory / "killed")


def segment(directory: Path, shard: int) -> Path:
    return sorted((directory / "journal" / f"shard={shard:02}").glob("*.arrow"))[-1]


def shorten(path: Path, by: int) -> None:
    os.truncate(path, path.stat().st_size - by)


def forget_the_last_group(directory: Path, shards: int) -> None:
    """Removes the last entry of the commit log, as a kill between the rows and that entry does."""
    (log,) = (directory / "journal").glob("commits-*.log")
    shorten(log, 24 * shards)


def files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != "lock"}


def tips(recovered: Recovered) -> dict[str, int]:
    return {tip.stream: tip.tip for tip in recovered.tips}


async def test_acknowledged_rows_and_epochs_survive_a_kill(tmp_path: Path) -> None:
    directory = await killed(tmp_path)
    async with running(directory, ManualClock()) as (journal, recovered):
        assert recovered.reset_shards == ()
        assert recovered.notes == ()
        assert tips(recovered) == {f"stream {number}": 2 for number in range(20)}
        assert sum(1 for _ in recovered.rows) == 41
        assert [span.first for span in journal.spans()] == [0, 0, 0]


async def test_complete_group_without_a_commit_log_entry_is_kept(tmp_path: Path) -> None:
    directory = await killed(tmp_path)
    forget_the_last_group(directory, 3)
    async with running(directory, ManualClock()) as (_, recovered):
        assert recovered.reset_shards == ()
        assert set(tips(recovered).values()) == {2}


async def test_incomplete_group_is_removed_from_every_shard(tmp_path: Path) -> None:
    directory = await killed(tmp_path)
    forget_the_last_group(directory, 3)
    shorten(segment(directory, 1), 100)
    async with running(directory, ManualClock()) as (journal, recovered):
        assert recovered.reset_shards == ()
        assert recovered.cut_bytes > 100
        assert set(tips(recovered).values()) == {1}
        first = by_shard([publication(f"stream {number}", 1) for number in range(20)])
        assert [list(rows.values()) for rows in (await read_all(journal)).values()] == first


async def test_shard_that_lost_acknowledged_rows_starts_a_new_generation_and_its_streams_new_epochs(
    tmp_path: Path,
) -> None:
    directory = await killed(tmp_path)
    damaged = segment(directory, 1)
    shorten(damaged, 100)
    left = damaged.read_bytes()
    async with running(directory, ManualClock()) as (journal, recovered):
        assert recovered.reset_shards == (1,)
        assert "shard 1 is damaged" in recovered.notes[0]
        placed = by_shard([publication(f"stream {number}", 2) for number in range(20)])
        assert tips(recovered) == {row.stream: 2 for shard in (0, 2) for row in placed[shard]}
        old, lost, new = (span for span in journal.spans() if span.shard == 1)
        assert (old.first, old.end) == (0, len(placed[1]))
        assert (lost.epoch, lost.first, lost.end) == (old.epoch, 2 * len(placed[1]), 2 * len(placed[1]))
        assert (new.first, new.end) == (1 << GENERATION_BITS, 1 << GENERATION_BITS)
        assert old.epoch != new.epoch
        assert journal.gauges()["journal_damaged_shards"] == 1
    assert damaged.read_bytes() == left, "the damaged file is not changed"
    async with running(directory, ManualClock()) as (journal, _):
        assert [span for span in journal.spans() if span.shard == 1] == [old, lost, new], "the spans are recorded"


async def test_torn_end_without_a_commit_log_counts_as_lost_rows(tmp_path: Path) -> None:
    directory = await killed(tmp_path)
    for log in (directory / "journal").glob("commits-*.log"):
        log.unlink()
    shorten(segment(directory, 1), 100)
    async with running(directory, ManualClock()) as (_, recovered):
        assert 1 in recovered.reset_shards


async def test_kill_with_memory_durability_starts_new_epochs_and_keeps_sessions(tmp_path: Path) -> None:
    directory = tmp_path / "alive"
    async with running(directory, ManualClock(), durability="memory") as (journal, _):
        journal.write_nowait([publication("a", 1), session("sid")])
    async with running(directory, ManualClock(), durability="memory") as (_, recovered):
        assert tips(recovered) == {"a": 1}
        copy = as_if_killed(directory, tmp_path / "killed")
    async with running(copy, ManualClock()) as (journal, recovered):
        assert recovered.reset_shards == (0, 1, 2)
        assert recovered.tips == []
        assert [row.kind for row in recovered.rows] == [RowKind.CONNECTED]
        await journal.write([publication("a", 1, b"another life")])
    async with running(copy, ManualClock()) as (_, recovered):
        assert recovered.reset_shards == ()
        assert [row.value for row in recovered.rows if row.stream] == [b"another life"]
        assert [row.sid for row in recovered.rows if row.sid] == ["sid"]


@pytest.mark.parametrize(("durability", "reset"), [("journal", (0, 1, 2)), ("fsync", ())])
async def test_only_synced_rows_are_trusted_after_a_reboot(tmp_path: Path, durability: str, reset: tuple[int, ...]) -> None:
    directory = await killed(tmp_path, durability=durability)
    async with running(directory, ManualClock(), boot="another boot") as (_, recovered):
        assert recovered.reset_shards == reset


async def test_synced_rows_are_kept_when_the_bytes_after_them_are_torn(tmp_path: Path) -> None:
    directory = await killed(tmp_path, durability="fsync")
    (log,) = (directory / "journal").glob("commits-*.log")
    log.write_bytes(bytes(100))
    with segment(directory, 0).open("ab") as file:
        file.write(bytes(500))
    async with running(directory, ManualClock(), boot="another boot") as (_, recovered):
        assert recovered.reset_shards == ()
        assert recovered.cut_bytes == 500
        assert set(tips(recovered).values()) == {2}


async def test_one_damaged_record_is_harmless(tmp_path: Path, subtests: pytest.Subtests) -> None:
    directory = await killed(tmp_path)
    for name, content in itertools.product(NAMES, (b"{}\n00000000\n", b"")):
        with subtests.test(name=name, content=content):
            copy = as_if_killed(directory, tmp_path / f"{name} {len(content)}")
            (copy / "journal" / name).write_bytes(content)
            async with running(copy, ManualClock()) as (_, recovered):
                assert recovered.reset_shards == ()
                assert set(tips(recovered).values()) == {2}


@pytest.mark.parametrize("how", ["missing", "damaged"])
async def test_journal_without_a_readable_record_is_refused_and_not_changed(tmp_path: Path, how: str) -> None:
    directory = await killed(tmp_path)
    for name in NAMES:
        if how == "missing":
            (directory / "journal" / name).unlink()
        else:
            (directory / "journal" / name).write_bytes(b"{}")
    before = files(directory)
    with pytest.raises(UserMistake, match="ropewalk journal repair"):
        made(directory, ManualClock()).open(EVER)
    assert files(directory) == before


async def test_interrupted_first_start_is_repeated(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock()):
        copy = as_if_killed(tmp_path / "journal", tmp_path / "cut off" / "journal")
    for path in [*(copy / name for name in NAMES), *copy.glob("commits-*.log")]:
        path.unlink()
    shorten(copy / "shard=01" / f"{0:020}.arrow", 200)
    async with running(copy.parent, ManualClock()) as (_, recovered):
        assert recovered.reset_shards == ()


async def test_missing_shard_is_reset(tmp_path: Path) -> None:
    directory = await killed(tmp_path)
    shutil.rmtree(directory / "journal" / "shard=02")
    async with running(directory, ManualClock()) as (_, recovered):
        assert recovered.reset_shards == (2,)


async def test_recovery_returns_rows_within_the_horizon_and_the_tips_of_all_streams(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock, shards=1, segment_size=4000) as (journal, _):
        for offset in range(1, 31):
            await journal.write([publication("busy", offset, at=clock())])
            if offset <= 3:
                await journal.write([publication("quiet", offset, at=clock(), producer="app", sequence=offset)])
            clock.advance(10)
        await journal.sweep()
        assert journal.gauges()["journal_segments"] > 5
    async with running(tmp_path, clock, horizon=35.0, shards=1) as (_, recovered):
        assert [(row.stream, row.offset) for row in recovered.rows] == [("busy", offset) for offset in (27, 28, 29, 30)]
        assert sorted(recovered.tips, key=lambda tip: tip.tip) == [
            StreamTip("quiet", "epoch", 3, 1_000_020.0),
            StreamTip("busy", "epoch", 30, 1_000_290.0),
        ]
        assert recovered.producers == {("app", 0): 3}
        assert recovered.newest == 1_000_290.0


async def test_partition_keys_survive_their_rows_and_belong_to_an_epoch(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock, shards=1, segment_size=4000) as (journal, _):
        await journal.write([publication("kept", 1, at=clock(), key="k"), publication("restarted", 1, at=clock(), key="k")])
        await journal.write([publication("restarted", 1, at=clock(), epoch="second")])
        for offset in range(1, 31):
            await journal.write([publication("busy", offset, at=clock())])
            clock.advance(10)
        await journal.sweep()
        assert journal.gauges()["journal_segments"] > 5
    async with running(tmp_path, clock, horizon=35.0, shards=1) as (_, recovered):
        keys = {(tip.stream, tip.epoch): tip.partition_key for tip in recovered.tips}
        assert keys == {("kept", "epoch"): "k", ("restarted", "second"): "", ("busy", "epoch"): ""}


async def test_journal_keeps_its_original_number_of_shards(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock(), shards=3):
        pass
    async with running(tmp_path, ManualClock(), shards=5) as (journal, recovered):
        assert recovered.shards == 3
        assert len(journal.spans()) == 3


async def test_journal_in_use_cannot_be_opened(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock()):
        with pytest.raises(UserMistake, match="another server"):
            made(tmp_path, ManualClock()).open(EVER)
    async with running(tmp_path, ManualClock()):
        pass


async def test_journal_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("")
    with pytest.raises(UserMistake, match="cannot be opened"):
        made(tmp_path, ManualClock()).open(EVER)


@pytest.mark.parametrize("horizon", [EVER, 0.0], ids=["all is young", "almost all is old"])
async def test_damaged_batch_and_missing_segment_lose_only_their_own_rows_after_every_start(
    tmp_path: Path, horizon: float
) -> None:
    clock = ManualClock()
    options: dict[str, Any] = {"shards": 1, "segment_size": 16_000}
    async with running(tmp_path / "alive", clock, **options) as (journal, _):
        for number in range(1, 81):
            await journal.write([publication("stream", number, at=clock.now + number)])
        await journal.sweep()
        directory = as_if_killed(tmp_path / "alive", tmp_path / "killed")
        epoch = journal.spans()[0].epoch
    first, second, *later = sorted((directory / "journal" / "shard=00").glob("*.arrow"))
    assert len(later) >= 2
    data = bytearray(first.read_bytes())
    data[data.index(b"stream 6")] ^= 1
    first.write_bytes(data)
    second.unlink()
    lost = {5, *range(int(second.stem), int(later[0].stem))}
    async with running(directory, clock, horizon, **options) as (journal, recovered):
        assert recovered.reset_shards == (0,)
        await journal.write([publication("stream", 1, at=clock.now + 100)])
        found = await read_all(journal)
        assert sorted(found[0]) == [*(position for position in range(80) if position not in lost), 1 << GENERATION_BITS]
        assert all(row.offset == position + 1 for position, row in found[0].items() if position < 80)
        spans = journal.spans()
        assert [(span.epoch, span.first, span.end) for span in spans[:3]] == [
            (epoch, 0, 5),
            (epoch, 6, int(second.stem)),
            (epoch, int(later[0].stem), 80),
        ]
        await journal.sweep()
        assert (journal.gauges()["journal_holes"], journal.gauges()["journal_hole_rows"]) == (2, len(lost))
    assert first.read_bytes() == data, "the damaged file is not changed"
    assert not list(directory.rglob("*.damaged"))
    async with running(directory, clock, horizon, **options) as (journal, recovered):
        assert (recovered.reset_shards, recovered.notes) == ((), ())
        assert journal.spans() == spans
        assert await read_all(journal) == found


async def test_segments_behind_a_damaged_one_are_still_read(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock, shards=1, segment_size=20_000) as (journal, _):
        for number in range(65):
            await journal.write([publication("a", 50 * number + each, b"x" * 300) for each in range(1, 51)])
        assert journal.gauges()["journal_segments"] > 60
    bad = sorted(tmp_path.rglob("*.arrow"))[6]
    data = bytearray(bad.read_bytes())
    data[8000:8032] = bytes(32)
    bad.write_bytes(data)
    async with running(tmp_path, clock, shards=1) as (journal, recovered):
        assert recovered.reset_shards == (0,)
        assert len((await read_all(journal))[0]) == 65 * 50 - 50
        (hole,) = find_holes(journal.spans())
        assert (hole.first, hole.end) == (int(bad.stem), int(bad.stem) + 50)
        assert f"positions {hole.first} to {hole.end - 1} " in recovered.notes[0]


@pytest.mark.parametrize("lost", ["one", "all"])
async def test_facts_of_removed_rows_survive_the_loss_of_one_state_file(tmp_path: Path, lost: str) -> None:
    clock = ManualClock()
    options: dict[str, Any] = {"shards": 1, "segment_size": 4000, "retention": 100.0, "for_archive": False}
    async with running(tmp_path, clock, **options) as (journal, _):
        await journal.write([publication("quiet", 1, at=clock(), producer="app", sequence=7)])
        for offset in range(1, 31):
            await journal.write([publication("busy", offset, at=clock())])
            clock.advance(10)
        await journal.sweep()
        assert journal.spans()[0].first > 1
    states = sorted(tmp_path.rglob("*.state"))
    assert len(states) > 2
    for path in states[:1] if lost == "one" else states:
        path.write_bytes(b"")
    async with running(tmp_path, clock, **options) as (_, recovered):
        assert recovered.reset_shards == ()
        assert recovered.producers == ({("app", 0): 7} if lost == "one" else {})
        assert tips(recovered) == {"busy": 30, **({"quiet": 1} if lost == "one" else {})}
        assert [note.startswith("shard 0 lost the record of") for note in recovered.notes] == ([] if lost == "one" else [True])


async def test_rows_of_a_failed_group_are_overwritten(tmp_path: Path) -> None:
    """The disk fails to write a group and then to truncate it. The next write must overwrite all of it."""
    disk = StubbornDisk()
    async with running(tmp_path, ManualClock(), shards=1, disk=disk) as (journal, _):
        disk.stubborn = True
        with pytest.raises(Unavailable):
            await journal.write([publication("a", offset, b"never" * 100) for offset in range(1, 20_001)])
        with pytest.raises(Unavailable):
            await journal.write([publication("a", 1)])
        disk.stubborn = False
        await journal.write([publication("a", 1)])
        (path,) = tmp_path.rglob("*.arrow")
        assert b"never" not in path.read_bytes()


class StubbornDisk(QuickDisk):
    """Writes all but the last bytes, fails, and fails to truncate."""

    stubborn = False

    def write(self, fd: int, data: bytes, at: int) -> None:
        if self.stubborn and len(data) > 100:
            super().write(fd, data[:-8], at)
            raise OSError(errno.EIO, "Input/output error")
        super().write(fd, data, at)

    def truncate(self, fd: int, size: int) -> None:
        if self.stubborn:
            raise OSError(errno.EIO, "Input/output error")
        super().truncate(fd, size)

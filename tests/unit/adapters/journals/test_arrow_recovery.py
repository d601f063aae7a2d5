"""Recovery: what is lost is told from what was never promised."""

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ropewalk.adapters.journals.arrow.manifest import LIFE_BITS
from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import Recovered, RowKind, StreamTip
from ropewalk.testing.clock import ManualClock
from tests.journals import EVER, as_if_killed, by_shard, made, publication, read_all, running, session

NAMES = ("journal.json", "journal.copy.json")


async def killed(directory: Path, **options: Any) -> Path:
    """A journal with two groups over all shards, ended without a stop."""
    async with running(directory / "alive", ManualClock(), **options) as (journal, _):
        await journal.write([publication(f"stream {number}", 1) for number in range(20)])
        await journal.write([*(publication(f"stream {number}", 2) for number in range(20)), session("sid")])
        return as_if_killed(directory / "alive", directory / "killed")


def segment(directory: Path, shard: int) -> Path:
    return sorted((directory / "journal" / f"shard={shard:02}").glob("*.arrow"))[-1]


def shorten(path: Path, by: int) -> None:
    os.truncate(path, path.stat().st_size - by)


def forget_the_last_group(directory: Path, shards: int) -> None:
    """As if the server had been killed after the rows and before the witness."""
    (log,) = (directory / "journal").glob("commits-*.log")
    shorten(log, 24 * shards)


def tips(recovered: Recovered) -> dict[str, int]:
    return {tip.stream: tip.tip for tip in recovered.tips}


async def test_after_a_kill_everything_acknowledged_is_there_and_epochs_stay(tmp_path: Path) -> None:
    directory = await killed(tmp_path)
    async with running(directory, ManualClock()) as (journal, recovered):
        assert recovered.reset_shards == ()
        assert recovered.notes == ()
        assert tips(recovered) == {f"stream {number}": 2 for number in range(20)}
        assert sum(1 for _ in recovered.rows) == 41
        assert [span.first for span in journal.spans()] == [0, 0, 0]


async def test_a_group_that_was_written_whole_counts_though_its_witness_is_missing(tmp_path: Path) -> None:
    directory = await killed(tmp_path)
    forget_the_last_group(directory, 3)
    async with running(directory, ManualClock()) as (_, recovered):
        assert recovered.reset_shards == ()
        assert set(tips(recovered).values()) == {2}


async def test_a_group_that_was_being_written_is_taken_off_every_shard(tmp_path: Path) -> None:
    directory = await killed(tmp_path)
    forget_the_last_group(directory, 3)
    shorten(segment(directory, 1), 100)
    async with running(directory, ManualClock()) as (journal, recovered):
        assert recovered.reset_shards == ()
        assert recovered.cut_bytes > 100
        assert set(tips(recovered).values()) == {1}
        first = by_shard([publication(f"stream {number}", 1) for number in range(20)])
        assert [list(rows.values()) for rows in (await read_all(journal)).values()] == first


async def test_a_shard_that_lost_what_was_promised_goes_on_above_all_its_positions_and_its_streams_begin_anew(
    tmp_path: Path,
) -> None:
    directory = await killed(tmp_path)
    shorten(segment(directory, 1), 100)
    async with running(directory, ManualClock()) as (journal, recovered):
        assert recovered.reset_shards == (1,)
        assert "shard 1 is damaged" in recovered.notes[0]
        placed = by_shard([publication(f"stream {number}", 2) for number in range(20)])
        assert tips(recovered) == {row.stream: 2 for shard in (0, 2) for row in placed[shard]}
        old, lost, new = (span for span in journal.spans() if span.shard == 1)
        assert (old.first, old.end) == (0, len(placed[1]))
        assert (lost.epoch, lost.first, lost.end) == (old.epoch, 2 * len(placed[1]), 2 * len(placed[1]))
        assert (new.first, new.end) == (1 << LIFE_BITS, 1 << LIFE_BITS)
        assert old.epoch != new.epoch
        assert journal.gauges()["journal_damaged_shards"] == 1
    assert list((directory / "journal" / "shard=01").glob("*.damaged"))
    async with running(directory, ManualClock()) as (journal, _):
        assert [span for span in journal.spans() if span.shard == 1] == [old, lost, new], "it is told for good"


async def test_without_a_witness_a_torn_end_counts_as_a_loss(tmp_path: Path) -> None:
    directory = await killed(tmp_path)
    for log in (directory / "journal").glob("commits-*.log"):
        log.unlink()
    shorten(segment(directory, 1), 100)
    async with running(directory, ManualClock()) as (_, recovered):
        assert 1 in recovered.reset_shards


async def test_killed_without_waiting_every_stream_begins_anew_and_sessions_stay(tmp_path: Path) -> None:
    directory = tmp_path / "alive"
    async with running(directory, ManualClock(), durability="memory") as (journal, _):
        journal.note([publication("a", 1), session("sid")])
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
async def test_after_the_machine_went_down_only_what_was_synced_is_believed(
    tmp_path: Path, durability: str, reset: tuple[int, ...]
) -> None:
    directory = await killed(tmp_path, durability=durability)
    async with running(directory, ManualClock(), boot="another boot") as (_, recovered):
        assert recovered.reset_shards == reset


async def test_synced_rows_stay_though_the_machine_tore_what_came_after(tmp_path: Path) -> None:
    directory = await killed(tmp_path, durability="fsync")
    (log,) = (directory / "journal").glob("commits-*.log")
    log.write_bytes(bytes(100))
    with segment(directory, 0).open("ab") as file:
        file.write(bytes(500))
    async with running(directory, ManualClock(), boot="another boot") as (_, recovered):
        assert recovered.reset_shards == ()
        assert recovered.cut_bytes == 500
        assert set(tips(recovered).values()) == {2}


@pytest.mark.parametrize("name", NAMES)
async def test_one_bad_record_of_the_journal_costs_nothing(tmp_path: Path, name: str) -> None:
    directory = await killed(tmp_path)
    (directory / "journal" / name).write_bytes(b"{}\n00000000\n")
    async with running(directory, ManualClock()) as (_, recovered):
        assert recovered.reset_shards == ()
        assert set(tips(recovered).values()) == {2}


async def test_without_any_record_the_rows_can_still_be_read_under_their_names(tmp_path: Path) -> None:
    directory = await killed(tmp_path)
    async with running(tmp_path / "alive", ManualClock()) as (journal, _):
        epochs = [span.epoch for span in journal.spans()]
        rows = await read_all(journal)
    for name in NAMES:
        (directory / "journal" / name).unlink()
    async with running(directory, ManualClock()) as (journal, recovered):
        assert recovered.reset_shards == (0, 1, 2)
        assert "the record of the journal itself is lost" in recovered.notes[0]
        assert [span.epoch for span in journal.spans() if span.first == 0] == epochs
        assert await read_all(journal) == rows


async def test_a_lost_shard_is_noticed(tmp_path: Path) -> None:
    directory = await killed(tmp_path)
    shutil.rmtree(directory / "journal" / "shard=02")
    async with running(directory, ManualClock()) as (_, recovered):
        assert recovered.reset_shards == (2,)


async def test_only_young_rows_are_given_back_and_the_ends_of_all_streams(tmp_path: Path) -> None:
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


async def test_a_journal_keeps_the_number_of_shards_it_was_made_with(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock(), shards=3):
        pass
    async with running(tmp_path, ManualClock(), shards=5) as (journal, recovered):
        assert recovered.shards == 3
        assert len(journal.spans()) == 3


async def test_two_servers_cannot_have_one_journal(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock()):
        with pytest.raises(UserMistake, match="another server"):
            made(tmp_path, ManualClock()).open(EVER)
    async with running(tmp_path, ManualClock()):
        pass


async def test_a_place_that_is_no_directory_is_said(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("")
    with pytest.raises(UserMistake, match="cannot be opened"):
        made(tmp_path, ManualClock()).open(EVER)


async def test_a_segment_is_a_plain_arrow_stream(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock(), shards=1) as (journal, _):
        await journal.write([publication("a", 1)])
        await journal.write([publication("a", 2)])
        with pa.OSFile(str(segment(tmp_path, 0))) as file:
            table = pa.ipc.open_stream(file).read_all()
        assert table["offset"].to_pylist() == [1, 2]
        assert table.schema.metadata[b"ropewalk.epoch"].decode() == journal.spans()[0].epoch


async def test_of_an_old_segment_with_a_bad_spot_the_rest_is_read_after_every_start(tmp_path: Path) -> None:
    clock = ManualClock()
    options: dict[str, Any] = {"shards": 1, "segment_size": 16_000}
    async with running(tmp_path / "alive", clock, **options) as (journal, _):
        for number in range(1, 81):
            await journal.write([publication("stream", number, at=clock.now + number)])
        await journal.sweep()
        directory = as_if_killed(tmp_path / "alive", tmp_path / "killed")
    first, second, *later = sorted((directory / "journal" / "shard=00").glob("*.arrow"))
    assert len(later) >= 2
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    second.unlink()
    async with running(directory, clock, 0.0, **options) as (journal, recovered):
        assert recovered.reset_shards == (0,)
        await journal.write([publication("stream", 1, at=clock.now + 100)])
        found = await read_all(journal)
        assert int(second.stem) - 1 in found[0], "what follows the bad spot"
        assert len(found[0]) <= int(second.stem)
    async with running(directory, clock, 0.0, **options) as (journal, _):
        assert await read_all(journal) == found

"""The log of a shard: ended generations are listed after their rows are gone, and readers get only undamaged, whole batches."""

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ropewalk.adapters.journals.arrow import logs
from ropewalk.model.errors import BadRequest
from ropewalk.model.journal import GENERATION_SIZE, ShardSpan
from ropewalk.testing.clock import ManualClock
from tests.journals import as_if_killed, publication, read_all, read_back, running, table

OPTIONS: dict[str, Any] = {"shards": 1, "retention": 100.0, "for_archive": False, "durability": "memory"}


async def live(directory: Path, clock: ManualClock, rows: int, copy: Path) -> str:
    """Writes a generation of so many rows and copies it without a stop. Returns its epoch."""
    async with running(directory, clock, **OPTIONS) as (journal, _):
        end = journal.spans()[-1].end
        journal.write_nowait([publication("a", offset, at=clock.now) for offset in range(1, rows + 1)])
        while journal.spans()[-1].end < end + rows:
            await journal.sweep()
        as_if_killed(directory, copy)
        return journal.spans()[-1].epoch


async def ended(directory: Path, clock: ManualClock, *rows: int) -> tuple[Path, list[str]]:
    """A journal with so many generations, each ended without a stop. Returns its directory and their epochs."""
    epochs = []
    for number, count in enumerate(rows):
        epochs.append(await live(directory / str(number), clock, count, directory / str(number + 1)))
    return directory / str(len(rows)), epochs


async def test_generation_without_rows_is_listed_with_its_end(tmp_path: Path) -> None:
    clock = ManualClock()
    directory, (epoch,) = await ended(tmp_path, clock, 5)
    clock.advance(1000)
    async with running(directory, clock, **OPTIONS) as (journal, _):
        assert journal.spans()[0] == ShardSpan(0, epoch, 0, 5)
        await journal.sweep()
        former, current = journal.spans()
        assert former == ShardSpan(0, epoch, 5, 5)
        assert (current.first, current.end) == (GENERATION_SIZE, GENERATION_SIZE)
        assert list(directory.rglob(f"{0:020}.arrow")) == []
        spans = journal.spans()
    async with running(directory, clock, **OPTIONS) as (journal, recovered):
        assert recovered.notes == ()
        assert journal.spans() == spans
        assert (await read_all(journal))[0] == {}
        with pytest.raises(BadRequest):
            await table(journal, 0, 3, 5)


async def test_generations_that_never_had_rows_are_not_listed(tmp_path: Path) -> None:
    clock = ManualClock()
    directory, epochs = await ended(tmp_path, clock, 2, 0, 0, 3, 0)
    async with running(directory, clock, **OPTIONS) as (journal, _):
        assert journal.spans()[:-1] == [
            ShardSpan(0, epochs[0], 0, 2),
            ShardSpan(0, epochs[3], 3 * GENERATION_SIZE, 3 * GENERATION_SIZE + 3),
        ]
        assert journal.spans()[-1].first == 5 * GENERATION_SIZE


async def test_number_of_ended_generations_is_bounded_and_the_newest_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_ENDED_GENERATIONS", 2)
    clock = ManualClock()
    directory, epochs = await ended(tmp_path, clock, 1, 2, 3, 4)
    clock.advance(1000)
    async with running(directory, clock, **OPTIONS) as (journal, _):
        await journal.sweep()
        assert [span.epoch for span in journal.spans()[:-1]] == epochs[2:]
    async with running(directory, clock, **OPTIONS) as (journal, _):
        assert journal.spans()[:-1] == [
            ShardSpan(0, epochs[2], 2 * GENERATION_SIZE + 3, 2 * GENERATION_SIZE + 3),
            ShardSpan(0, epochs[3], 3 * GENERATION_SIZE + 4, 3 * GENERATION_SIZE + 4),
        ]


async def test_generation_that_lost_all_rows_to_damage_is_listed_as_a_hole(tmp_path: Path) -> None:
    clock = ManualClock()
    directory, _ = await ended(tmp_path, clock, 5)
    async with running(directory, clock, **OPTIONS):
        pass  # it records where the generation ended
    for path in directory.rglob(f"{0:020}.*"):
        path.unlink()
    async with running(directory, clock, **OPTIONS) as (journal, recovered):
        assert "lost positions 0 to 4 " in recovered.notes[0]
        assert [(span.first, span.end) for span in journal.spans()] == [(0, 0), (5, 5), (GENERATION_SIZE, GENERATION_SIZE)]


async def test_restored_files_of_an_ended_generation_are_removed_again(tmp_path: Path) -> None:
    clock = ManualClock()
    directory, (epoch,) = await ended(tmp_path, clock, 5)
    clock.advance(1000)
    (path,) = directory.rglob(f"{0:020}.arrow")
    shutil.copy(path, tmp_path / "kept")
    async with running(directory, clock, **OPTIONS) as (journal, _):
        await journal.sweep()
    shutil.copy(tmp_path / "kept", path)
    async with running(directory, clock, **OPTIONS) as (journal, _):
        assert journal.spans()[0] == ShardSpan(0, epoch, 5, 5)
        assert not path.exists()


# --- Readers ---------------------------------------------------------------------------------------------------------


async def test_range_inside_a_batch_returns_the_whole_batch(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock(), shards=1) as (journal, _):
        await journal.write([publication("a", offset) for offset in range(1, 11)])
        await journal.write([publication("a", offset) for offset in range(11, 21)])
        found = await table(journal, 0, 12, 13)
        assert found["position"].to_pylist() == list(range(10, 20))


async def test_read_ends_before_a_batch_that_exceeds_the_byte_limit(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock(), shards=1) as (journal, _):
        for offset in range(1, 11):
            await journal.write([publication("a", offset, b"x" * 1000)])
        one = await table(journal, 0, 0, 10, max_bytes=1)
        some = await table(journal, 0, 0, 10, max_bytes=10_000)
    assert one["position"].to_pylist() == [0]
    positions = some["position"].to_pylist()
    assert 1 < len(positions) < 10
    assert positions == list(range(len(positions)))


async def test_read_ends_if_retention_removes_its_rows(tmp_path: Path) -> None:
    clock = ManualClock()
    options: dict[str, Any] = {"shards": 1, "segment_size": 5000, "retention": 100.0, "for_archive": False}
    async with running(tmp_path, clock, **options) as (journal, _):
        for offset in range(1, 11):
            await journal.write([publication("a", offset, b"x" * 1000, clock())])
        pieces = journal.read(0, 0, 10, 1 << 20)
        data = [await anext(pieces)]
        clock.advance(1000)
        await journal.sweep()
        assert journal.spans()[0].first > 0
        data += [piece async for piece in pieces]
    assert pa.ipc.open_stream(b"".join(data)).read_all().num_rows == 0


async def test_concurrent_read_returns_each_position_once(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock(), shards=1, segment_size=60_000) as (journal, _):

        async def write() -> None:
            for offset in range(1, 301):
                await journal.write([publication("a", offset)])
            await journal.sweep()

        writing = asyncio.create_task(write())
        read: list[int] = []
        while not writing.done() or len(read) < 300:
            span = journal.spans()[0]
            found = (await table(journal, 0, len(read), span.end, 10_000))["offset"].to_pylist()
            read += [offset for offset in found if offset > len(read)]
            await asyncio.sleep(0)
        assert read == list(range(1, 301))


async def test_batch_damaged_at_run_time_is_not_served_and_leaves_the_spans(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock(), shards=1) as (journal, _):
        for offset in range(1, 31):
            await journal.write([publication("a", offset)])
        (segment,) = tmp_path.rglob("*.arrow")
        data = bytearray(segment.read_bytes())
        data[data.index(b"a 12")] ^= 1
        segment.write_bytes(data)
        assert list(await read_back(journal, 0, 0, 30)) == list(range(11))
        assert [(span.first, span.end) for span in journal.spans()] == [(0, 11), (12, 30)]
        assert sorted((await read_all(journal))[0]) == [*range(11), *range(12, 30)]
        with pytest.raises(BadRequest):
            journal.read(0, 10, 13, 1000)
        assert journal.gauges()["journal_damaged_batches"] == 1


@pytest.mark.parametrize("size", [None, 700], ids=["missing", "cut"])
async def test_segment_that_is_put_back_is_served_again(tmp_path: Path, size: int | None) -> None:
    async with running(tmp_path, ManualClock(), shards=1) as (journal, _):
        for offset in range(1, 31):
            await journal.write([publication("a", offset)])
        (segment,) = tmp_path.rglob("*.arrow")
        data = segment.read_bytes()
        segment.unlink()
        if size is not None:
            segment.write_bytes(data[:size])
        for position in range(30):  # each batch is found damaged on its own
            with suppress(BadRequest):
                await read_back(journal, 0, position, 30)
        await journal.sweep()
        assert sum(span.end - span.first for span in journal.spans()) < 30

        segment.write_bytes(data)
        await journal.sweep()

        assert [(span.first, span.end) for span in journal.spans()] == [(0, 30)]
        assert list(await read_back(journal, 0, 0, 30)) == list(range(30))
    async with running(tmp_path, ManualClock(), shards=1) as (journal, _):
        assert [(span.first, span.end) for span in journal.spans()] == [(0, 30)]


async def test_missing_range_is_refused_before_the_first_byte(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock(), shards=1) as (journal, _):
        with pytest.raises(BadRequest, match="not in shard 0"):
            journal.read(0, 0, 1, 1000)

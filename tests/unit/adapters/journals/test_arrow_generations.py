"""Former generations of a shard: after their rows are gone it is still told where they ended."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from ropewalk.adapters.journals.arrow import logs
from ropewalk.model.errors import BadRequest
from ropewalk.model.journal import GENERATION_BITS, ShardSpan
from ropewalk.testing.clock import ManualClock
from tests.journals import as_if_killed, publication, read_all, running, table

GENERATION_SIZE = 1 << GENERATION_BITS
OPTIONS: dict[str, Any] = {"shards": 1, "retention": 100.0, "for_archive": False, "durability": "memory"}


async def live(directory: Path, clock: ManualClock, rows: int, copy: Path) -> str:
    """A generation of so many rows that ends without a stop. Answers its epoch."""
    async with running(directory, clock, **OPTIONS) as (journal, _):
        end = journal.spans()[-1].end
        journal.note([publication("a", offset, at=clock.now) for offset in range(1, rows + 1)])
        while journal.spans()[-1].end < end + rows:
            await journal.sweep()
        as_if_killed(directory, copy)
        return journal.spans()[-1].epoch


async def ended(directory: Path, clock: ManualClock, *rows: int) -> tuple[Path, list[str]]:
    """A journal that ended so often without a stop, and the epochs of its generations."""
    epochs = []
    for number, count in enumerate(rows):
        epochs.append(await live(directory / str(number), clock, count, directory / str(number + 1)))
    return directory / str(len(rows)), epochs


async def test_a_generation_whose_rows_are_gone_is_told_with_its_end(tmp_path: Path) -> None:
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


async def test_generations_in_which_nothing_happened_are_not_told(tmp_path: Path) -> None:
    clock = ManualClock()
    directory, epochs = await ended(tmp_path, clock, 2, 0, 0, 3, 0)
    async with running(directory, clock, **OPTIONS) as (journal, _):
        assert journal.spans()[:-1] == [
            ShardSpan(0, epochs[0], 0, 2),
            ShardSpan(0, epochs[3], 3 * GENERATION_SIZE, 3 * GENERATION_SIZE + 3),
        ]
        assert journal.spans()[-1].first == 5 * GENERATION_SIZE


async def test_ended_generations_are_bounded_and_the_last_ones_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "ENDED_GENERATIONS", 2)
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


async def test_a_generation_that_lost_all_its_rows_by_damage_is_not_told_as_if_it_had_ended_in_order(tmp_path: Path) -> None:
    clock = ManualClock()
    directory, _ = await ended(tmp_path, clock, 5)
    async with running(directory, clock, **OPTIONS):
        pass  # it records where the generation ended
    for path in directory.rglob(f"{0:020}.*"):
        path.unlink()
    async with running(directory, clock, **OPTIONS) as (journal, recovered):
        assert "lost positions from 0 to 5" in recovered.notes[0]
        assert [(span.first, span.end) for span in journal.spans()] == [(0, 0), (5, 5), (GENERATION_SIZE, GENERATION_SIZE)]


async def test_files_of_an_ended_generation_that_came_back_go_again(tmp_path: Path) -> None:
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

"""Random damage to a journal's files loses only the damaged rows, and no position is assigned twice.

The commit log and the rows it covers are not damaged together: the loss could not be detected then.
"""

import os
import random
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec import Struct

from ropewalk.adapters.journals.arrow import ArrowJournal
from ropewalk.adapters.journals.arrow.batches import encode
from ropewalk.adapters.journals.arrow.maintenance import HoleReport, verify
from ropewalk.adapters.journals.arrow.records import NAMES, damaged_copies
from ropewalk.adapters.journals.arrow.repair import repair
from ropewalk.adapters.journals.arrow.segment import scan
from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import Recovered, Row, ShardSpan, find_holes
from ropewalk.testing.clock import ManualClock
from tests.journals import EVER, QuickDisk, as_if_killed, by_shard, made, publication, read_all, running, session

SHARDS = 3


class Base(Struct):
    """A journal before the damage: its files, its rows by shard, and the epochs of the shards."""

    directory: Path
    rows: list[list[Row]]
    epochs: dict[int, str]

    def archived(self, shard: int, first: int, end: int) -> list[Any]:
        rows = self.rows[shard][first:end]
        return [pa.Table.from_batches([encode(rows, first)[0]])] if rows else []

    def hit(self, damaged: Path) -> list[set[int]]:
        """By shard, the positions of batches whose bytes have changed."""
        lost: list[set[int]] = [set() for _ in range(SHARDS)]
        for path in self.directory.rglob("*.arrow"):
            shard = int(path.parent.name.removeprefix("shard="))
            other = damaged / path.relative_to(self.directory)
            before, after = path.read_bytes(), other.read_bytes() if other.exists() else b""
            segment, _ = scan(path, shard, int(path.stem), 0, False)
            for first, end, begin, until in map(segment.limits, range(len(segment.firsts))):
                if before[begin:until] != after[begin:until]:
                    lost[shard].update(range(first, end))
        return lost


def traffic(rng: random.Random, offsets: dict[str, int], now: float) -> list[Row]:
    rows = []
    for _ in range(rng.randrange(1, 12)):
        if rng.random() < 0.2:
            rows.append(session(f"sid {rng.randrange(10)}", now))
            continue
        stream = f"stream {rng.randrange(12)}"
        offset = offsets[stream] = offsets.get(stream, 0) + 1
        more: dict[str, object] = {"producer": "app", "sequence": offset} if stream == "stream 1" else {}
        rows.append(publication(stream, offset, rng.randbytes(rng.randrange(60)), now, **more))
    return rows


async def make_base(directory: Path, rng: random.Random, killed: bool) -> Base:
    clock = ManualClock()
    rows: list[Row] = []
    offsets: dict[str, int] = {}
    async with running(directory / "alive", clock, segment_size=24_000) as (journal, _):
        for _ in range(60):
            group = traffic(rng, offsets, clock())
            await journal.write(group)
            rows += group
            clock.advance(1.0)
        await journal.sweep()
        epochs = {span.shard: span.epoch for span in journal.spans()}
        if killed:
            return Base(as_if_killed(directory / "alive", directory / "files"), by_shard(rows), epochs)
    return Base(as_if_killed(directory / "alive", directory / "files"), by_shard(rows), epochs)


# --- damage ----------------------------------------------------------------------------------------------------------


def flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def truncate(path: Path, rng: random.Random) -> None:
    size = path.stat().st_size
    os.truncate(path, rng.choice([0, rng.randrange(size + 1), max(0, size - rng.randrange(1, 60))]))


def zero_range(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data) + 1)
    length = min(rng.choice([1, 8, 512, 4096]), len(data) - at)
    data[at : at + length] = bytes(length)
    path.write_bytes(data)


def append_garbage(path: Path, rng: random.Random) -> None:
    with path.open("ab") as file:
        file.write(rng.randbytes(rng.randrange(1, 300)))


def delete(path: Path, rng: random.Random) -> None:
    path.unlink()


def delete_first_segments(directory: Path, rng: random.Random) -> tuple[set[Path], list[str]]:
    """Delete the first segments of a shard, sometimes all of them."""
    segments = sorted(rng.choice(sorted((directory / "journal").glob("shard=*"))).glob("*.arrow"))
    deleted = segments[: rng.choice([1, 1, rng.randrange(1, len(segments) + 1), len(segments)])]
    for path in deleted:
        path.unlink()
    return set(deleted), [f"delete_first_segments {path.relative_to(directory)}" for path in deleted]


def add_stray_file(directory: Path, rng: random.Random) -> tuple[set[Path], list[str]]:
    """Add a file that has the name of a segment, between the others or after them. No rows are lost."""
    shard = rng.choice(sorted((directory / "journal").glob("shard=*")))
    position = rng.choice([1, 2, 99_999, (1 << 40) + 7, 9 << 40, 1 << 63, 10**20 - 1])
    path = shard / f"{position:020}.arrow"
    if not path.exists():
        path.write_bytes(rng.randbytes(rng.choice([0, 1, 2000])))
    return set(), [f"add_stray_file {path.relative_to(directory)}"]


def damage(directory: Path, rng: random.Random) -> tuple[set[Path], list[str]]:
    if (rare := rng.random()) < 0.2:
        return (delete_first_segments if rare < 0.12 else add_stray_file)(directory, rng)
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != "lock")
    first = rng.choice(files)
    chosen = {first}
    if rng.random() < 0.25 and "commits" not in first.name:
        chosen.add(rng.choice([path for path in files if "commits" not in path.name]))
    applied = []
    for path in sorted(chosen):
        method = rng.choice([flip, flip, truncate, zero_range, append_garbage, delete])
        method(path, rng)
        applied.append(f"{method.__name__} {path.relative_to(directory)}")
    return chosen, applied


# --- checks ----------------------------------------------------------------------------------------------------------


def stream_tips(rows: list[Row]) -> dict[str, int]:
    return {row.stream: row.offset for row in rows if row.stream}


def check_kept(base: Base, shard: int, found: dict[int, Row], recovered: Recovered, tips: dict[str, int]) -> None:
    assert found == dict(enumerate(base.rows[shard]))
    assert {stream: tips.get(stream) for stream in stream_tips(base.rows[shard])} == stream_tips(base.rows[shard])
    last = [row.sequence for row in base.rows[shard] if row.producer]
    assert recovered.producers.get(("app", shard), 0) == max(last, default=0)


def positions(holes: Sequence[ShardSpan | HoleReport]) -> list[set[int]]:
    """By shard."""
    return [{at for hole in holes if hole.shard == shard for at in range(hole.first, hole.end)} for shard in range(SHARDS)]


async def check(
    base: Base, directory: Path, journal: ArrowJournal, recovered: Recovered, damaged_shards: set[int]
) -> list[set[int]]:
    """Returns the damaged positions by shard."""
    everything = await read_all(journal)
    hit = base.hit(directory)
    spans = journal.spans()
    assert positions(find_holes(spans)) == hit, "every hole is reported exactly"
    tips = {tip.stream: tip.tip for tip in recovered.tips}
    for shard, written in enumerate(base.rows):
        found = everything.get(shard, {})
        wrong = [position for position, row in found.items() if position >= len(written) or written[position] != row]
        assert not wrong, f"shard {shard} serves rows that were never written at {wrong}"
        assert set(range(len(written))) - found.keys() == hit[shard], f"shard {shard} serves all but the damaged rows"
        assert not hit[shard] & {at for span in spans if span.shard == shard for at in range(span.first, min(span.end, 10_000))}
        last = [span for span in spans if span.shard == shard][-1]
        if shard in recovered.reset_shards:
            assert last.epoch != base.epochs[shard]
            assert last.first > len(written)
            assert not tips.keys() & stream_tips(written).keys()
        else:
            assert (last.epoch, last.end) == (base.epochs[shard], len(written))
        if shard not in damaged_shards and len(recovered.reset_shards) < SHARDS:
            assert shard not in recovered.reset_shards
            check_kept(base, shard, found, recovered, tips)
    known = [set(map(str, rows)) for rows in by_shard([row for rows in base.rows for row in rows])]
    for row in recovered.rows:
        assert any(str(row) in rows for rows in known)
    return hit


async def check_files(base: Base, directory: Path, repaired: Path) -> None:
    """`verify` finds exactly the damaged positions, and `repair` restores all rows from a complete archive."""
    hit = base.hit(directory)
    report = verify(directory, quiet)
    assert positions(report.holes) == hit
    if not any(hit):
        return
    as_if_killed(directory, repaired)
    done = repair(repaired, base.archived, quiet, QuickDisk())
    assert (done.filled_rows, done.missing_rows) == (sum(map(len, hit)), 0)
    async with running(repaired, ManualClock(2_000_000.0)) as (journal, _):
        assert await read_all(journal) == {shard: dict(enumerate(rows)) for shard, rows in enumerate(base.rows)}
    shutil.rmtree(repaired)


def quiet(done: int, total: int) -> None:
    """Ignore the progress."""


async def check_new_rows(base: Base, journal: ArrowJournal, rng: random.Random) -> dict[int, dict[int, Row]]:
    """New rows get unused positions and are read back with the old ones."""
    before = {span.shard: span.end for span in journal.spans()}
    rows = [publication(f"stream {number}", 1000 + number) for number in range(12)]
    await journal.write(rows)
    everything = await read_all(journal)
    for shard, placed in enumerate(by_shard(rows)):
        assert before[shard] >= len(base.rows[shard])
        assert [everything[shard][before[shard] + number] for number in range(len(placed))] == placed
    return everything


async def test_damaged_files_lose_only_the_damaged_rows(tmp_path: Path) -> None:
    await check_damages(tmp_path, 1, 10, killed=True, horizon=EVER)


@pytest.mark.tier("all")
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "stopped"])
@pytest.mark.parametrize("horizon", [EVER, 0.0], ids=["recent-rows", "old-rows"])
async def test_random_damage_loses_only_the_damaged_rows(tmp_path: Path, killed: bool, horizon: float) -> None:
    seed = int(os.environ.get("JOURNAL_SEED") or secrets.randbelow(10**9))
    await check_damages(tmp_path, seed, 52, killed, horizon)


async def check_damages(tmp_path: Path, seed: int, count: int, killed: bool, horizon: float) -> None:
    """No wrong row is served, and no position is assigned twice. Damages the journal `count` times, and more often if no shard
    was reset by then."""
    base = await make_base(tmp_path, random.Random(seed), killed)
    resets = 0
    for number in range(100 * count):
        if number >= count and resets:
            break
        rng = random.Random(f"{seed} {number}")
        directory = tmp_path / "damaged"
        as_if_killed(base.directory, directory)
        chosen, applied = damage(directory, rng)
        damaged_shards = {
            int(path.parent.name.removeprefix("shard=")) for path in chosen if path.parent.name.startswith("shard=")
        }
        try:
            if damaged_copies(directory / "journal") == [*NAMES]:
                with pytest.raises(UserMistake, match="ropewalk journal repair"):
                    made(directory, ManualClock(2_000_000.0)).open(horizon)
                assert repair(directory, None, quiet, QuickDisk()).rebuilt
            await check_files(base, directory, tmp_path / "repaired")
            async with running(directory, ManualClock(2_000_000.0), horizon) as (journal, recovered):
                hit = await check(base, directory, journal, recovered, damaged_shards)
                everything = await check_new_rows(base, journal, rng)
                resets += len(recovered.reset_shards)
                await journal.sweep()
                spans = journal.spans()
            async with running(directory, ManualClock(2_000_000.0), horizon) as (journal, recovered):
                assert recovered.reset_shards == ()
                assert await read_all(journal) == everything
                assert journal.spans() == spans, "holes are still reported"
            assert positions(verify(directory, quiet).holes) == hit, "verify reports them too, after the server ran"
            repaired = repair(directory, base.archived, quiet, QuickDisk())
            assert (repaired.filled_rows, repaired.missing_rows) == (sum(map(len, hit)), 0)
        except BaseException as error:
            error.add_note(f"damage {number} of JOURNAL_SEED={seed}: {', '.join(applied)}")
            raise
        shutil.rmtree(directory)
    assert resets > 0, f"no damage of JOURNAL_SEED={seed} reset a shard"

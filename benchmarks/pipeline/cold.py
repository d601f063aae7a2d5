"""Cold ranges: so many messages of one stream out of an archive of many days, read as the server reads them.

The files are written by the archive's own functions, without Spark; the floor is one row group read by plain Arrow.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
from msgspec import Struct

from benchmarks.pipeline.rows import EPOCH, archive_rows
from benchmarks.report import Bar, Figure, figure, milliseconds
from benchmarks.sizes import Sizes
from ropewalk.adapters.archives.delta import DeltaArchive
from ropewalk.adapters.archives.parquet_index import COLUMNS
from ropewalk.core.ring import locate_shard
from ropewalk.model.history import HistoryRange
from ropewalk.pipeline.archive.layout import Written, write_file
from ropewalk.pipeline.archive.log import append

BAR = Bar("ratio", "<=", 5.0)
GROWTH_BAR = Bar("ratio", "<=", 1.5)
FIRST_DAY = datetime(2026, 1, 1, tzinfo=UTC)
SEED = 20260101


class Stream(Struct, frozen=True):
    """`daily` messages are published every day; streams differ in it, so a file's offset range excludes few of them."""

    name: str
    daily: int


class Rounds(Struct, frozen=True):
    """Seconds of every read. `first`: of a server that knows nothing yet but the list of files."""

    first: list[float]
    ranges: list[list[float]]
    floor: list[list[float]]


def measure_cold(sizes: Sizes) -> list[Figure]:
    """The archive grows by days; ranges are read after so many of them, each from a stream and a place taken by chance."""
    chance = random.Random(SEED)
    streams = _streams(sizes)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as directory:
        written = 0
        for days in sizes.cold_days:
            for day in range(written, days):
                _write_day(Path(directory), day, streams, sizes)
            written = days
            figures.append(_figure(asyncio.run(_rounds(directory, streams, days, sizes, chance)), days, streams, sizes))
    return [*figures, _growth(figures[0], figures[-1])]


# --- the archive ------------------------------------------------------------------------------------------------------


def _streams(sizes: Sizes) -> list[Stream]:
    average = sizes.cold_rows_a_day // sizes.cold_streams
    return [
        Stream(f"room {number}", max(1, average // 10 + average * 9 * (number % 3) // 10))
        for number in range(sizes.cold_streams)
    ]


def _write_day(root: Path, day: int, streams: list[Stream], sizes: Sizes) -> None:
    by_shard: dict[int, list[Stream]] = {}
    for stream in streams:
        by_shard.setdefault(locate_shard(stream.name, sizes.shards), []).append(stream)
    files = [_write_shard(root, day, shard, own, sizes) for shard, own in by_shard.items()]
    if not append(str(root), "bench", day, files):
        raise AssertionError(f"day {day} of the archive was written before")


def _write_shard(root: Path, day: int, shard: int, streams: list[Stream], sizes: Sizes) -> Written:
    names = [stream.name for stream in streams for _ in range(stream.daily)]
    begin = FIRST_DAY + timedelta(days=day)
    offsets = [day * stream.daily + index + 1 for stream in streams for index in range(stream.daily)]
    rows = archive_rows(names, offsets, day * len(names), begin, sizes.row_bytes)
    return write_file(root, begin.date().isoformat(), shard, f"bench-{day}", rows)


# --- reading it -------------------------------------------------------------------------------------------------------


async def _rounds(root: str, streams: list[Stream], days: int, sizes: Sizes, chance: random.Random) -> Rounds:
    archive = DeltaArchive(root, sizes.shards, time.time, refresh=2.0)
    groups = _row_groups(Path(root), chance)
    ranges: list[list[float]] = []
    floor: list[list[float]] = []
    try:
        # what a server learns of the files with its first reads is not part of each
        unmeasured = [await _read(archive, streams, days, sizes, chance) for _ in range(sizes.cold_unmeasured)]
        for _ in range(sizes.cold_rounds):
            ranges.append(await _read(archive, streams, days, sizes, chance))
            floor.append([_read_group(*next(groups)) for _ in range(sizes.cold_ranges)])
    finally:
        await archive.stop()
    return Rounds(unmeasured[0], ranges, floor)


async def _read(archive: DeltaArchive, streams: list[Stream], days: int, sizes: Sizes, chance: random.Random) -> list[float]:
    seconds: list[float] = []
    # a stream that takes several days for so many messages is in as many files: that is not growth
    for stream in chance.choices([each for each in streams if each.daily >= sizes.cold_range], k=sizes.cold_ranges):
        first = chance.randint(1, stream.daily * days - sizes.cold_range + 1)
        last = first + sizes.cold_range - 1
        started = time.perf_counter()
        piece = await archive.read(stream.name, HistoryRange(stream.name, EPOCH, first, last, sizes.cold_range))
        seconds.append(time.perf_counter() - started)
        if [message.offset for message in piece.messages] != list(range(first, last + 1)):
            raise AssertionError(f"a range of {stream.name} did not come whole")
    return seconds


def _row_groups(root: Path, chance: random.Random) -> Iterator[tuple[Path, pq.FileMetaData, int]]:
    files = [(path, pq.read_metadata(path)) for path in sorted(root.rglob("*.parquet"))]
    while True:
        path, metadata = chance.choice(files)
        yield path, metadata, chance.randrange(metadata.num_row_groups)


def _read_group(path: Path, metadata: pq.FileMetaData, number: int) -> float:
    """The same columns, the file's footer known, the page cache warm: as little as Arrow can do."""
    started = time.perf_counter()
    with pq.ParquetFile(path, metadata=metadata, memory_map=True) as file:
        file.read_row_group(number, columns=COLUMNS, use_threads=False)
    return time.perf_counter() - started


# --- figures ----------------------------------------------------------------------------------------------------------


def _figure(found: Rounds, days: int, streams: list[Stream], sizes: Sizes) -> Figure:
    rows = days * sum(stream.daily for stream in streams)
    details: dict[str, float] = {
        "rows": rows,
        "days": days,
        "streams": len(streams),
        "ranges_a_round": sizes.cold_ranges,
        "p95_ms": milliseconds([each for round_ in found.ranges for each in round_], 95),
        "first_reads_p50_ms": milliseconds(found.first, 50),
    }
    title = f"{sizes.cold_range} cold messages out of {rows:,}, p50"
    ranges, floor = ([milliseconds(round_, 50) for round_ in kind] for kind in (found.ranges, found.floor))
    return figure(f"k{days}", title, "ms", ranges, floor, details, BAR)


def _growth(small: Figure, large: Figure) -> Figure:
    details = {"rows": large.details["rows"], "floor_rows": small.details["rows"]}
    title = f"the same out of {details['rows']:,.0f} against {details['floor_rows']:,.0f}, p50"
    return figure("kx", title, "ms", large.rounds, small.rounds, details, GROWTH_BAR)

"""Fills the holes of a stopped journal with rows from its archive, at their positions, and rewrites damaged headers.

Invariant: a segment is replaced atomically, and the damaged file is kept beside it. Rows that contradict the rest of the
journal are refused.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from ropewalk.adapters.journals.arrow.batches import KINDS, frame_batch, frame_opening
from ropewalk.adapters.journals.arrow.inspection import InspectedGeneration, Progress, stateless, survey
from ropewalk.adapters.journals.arrow.records import Disk, Manifest, lock, save
from ropewalk.adapters.journals.arrow.segment import Hole, Segment, index_path, read_table, scan, segment_path
from ropewalk.adapters.journals.arrow.writer import BATCH_ROWS
from ropewalk.core.ring import locate_shard
from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import GENERATION_BITS
from ropewalk.protocol.journal_schema import INT64, SCHEMA

ArchivedRows = Callable[[int, int, int], Iterable[Any]]
"""Maps (shard, first, end) to tables of the archived rows at these positions."""


class Repaired(Struct, frozen=True):
    """The result of a repair.

    Attributes:
        rebuilt: the manifest was rebuilt.
        kept: new names of the damaged files.
        headers: number of rewritten headers.
        stateless: shards that lost the state of their producers and idle streams, which no archive has.
        damaged: archive files that were not used, and why.
    """

    rebuilt: bool
    filled_rows: int
    missing_rows: int
    kept: list[str]
    headers: int = 0
    stateless: tuple[int, ...] = ()
    damaged: list[str] = []


def repair(data_dir: Path, archived: ArchivedRows | None, progress: Progress, disk: Disk | None = None) -> Repaired:
    """Raises UserMistake while a server uses the journal, and for the archive of another journal."""
    disk = disk or Disk()
    if not (data_dir / "journal").is_dir():
        raise UserMistake(f"no journal in {data_dir}")
    held = lock(data_dir / "journal" / "lock")
    try:
        return _repair(data_dir, archived, progress, disk)
    finally:
        os.close(held)


def _repair(data_dir: Path, archived: ArchivedRows | None, progress: Progress, disk: Disk) -> Repaired:
    found = survey(data_dir, progress)
    manifest = found.manifest
    if not found.recorded:
        save(found.directory, manifest, disk)
    damaged = [
        (generation, segment)
        for generations in found.generations
        for generation in generations
        for segment in _damaged(found.directory, generation)
    ]
    missing = {(generation.chain.shard, hole) for generation, segment in damaged for hole in segment.holes}
    filled: set[tuple[int, Hole]] = set()
    kept: list[str] = []
    for generation, segment in damaged:
        runs = {hole: list(_runs(generation, hole, archived, manifest.shards)) for hole in segment.holes} if archived else {}
        if segment.headless or any(runs.values()):
            kept += _replace(generation, segment, runs, disk)
            filled |= {(segment.shard, _extent(run)) for of_hole in runs.values() for run in of_hole}
    if filled:
        save(found.directory, _without(manifest, filled), disk)
    lost, found_again = (sum(end - first for _, (first, end) in ranges) for ranges in (missing, filled))
    headers = sum(each.headless for _, each in damaged)
    without_state = tuple(
        shard for shard, generations in enumerate(found.generations) if _without_state(generations[-1], filled)
    )
    return Repaired(not found.recorded, found_again, lost - found_again, kept, headers, without_state)


def _without_state(generation: InspectedGeneration, filled: set[tuple[int, Hole]]) -> bool:
    """The state is known again if all rows from the first one on are restored."""
    begin = generation.chain.record.number << GENERATION_BITS
    return stateless(generation) and not any(
        hole[0] == begin and (generation.chain.shard, hole) in filled for hole in generation.missing_head
    )


def _damaged(directory: Path, generation: InspectedGeneration) -> Iterator[Segment]:
    """Segments with holes or without a header. An empty segment stands for missing first files of a generation."""
    for first, end in generation.missing_head:
        gone = Segment(segment_path(directory, generation.chain.shard, first), generation.chain.shard, first, 0)
        gone.skip(end, 0)
        yield gone
    yield from (segment for segment in generation.segments if segment.holes or segment.headless)


# --- reading the archive ---------------------------------------------------------------------------------------------


def _runs(generation: InspectedGeneration, hole: Hole, archived: ArchivedRows, shards: int) -> Iterator[Any]:
    """Tables of consecutive positions of the hole. Raises UserMistake for rows of another journal."""
    shard = generation.chain.shard
    tables = [_journal_rows(table) for table in archived(shard, *hole)]
    rows = pa.concat_tables([SCHEMA.empty_table(), *tables]).sort_by("position").combine_chunks()
    if rows.num_rows and not _fits(generation, hole, archived, rows, shards):
        raise UserMistake(
            f"this is the archive of another journal: its rows around positions {hole[0]} to {hole[1]} of shard {shard} differ"
        )
    positions = rows["position"].to_pylist()
    begin = 0
    for number in range(1, len(positions) + 1):
        if number == len(positions) or positions[number] != positions[number - 1] + 1:
            yield rows.slice(begin, number - begin)
            begin = number


def _journal_rows(table: Any) -> Any:
    """Drop gap rows, which mark losses of the archive itself."""
    try:
        rows = table.select(SCHEMA.names).cast(SCHEMA)
    except (KeyError, ValueError) as error:  # Arrow's errors are ValueErrors
        raise UserMistake(f"this is not the archive of a journal: {error}") from None
    return rows.filter(pc.is_in(rows["event"], pa.array(list(KINDS))))


def _fits(generation: InspectedGeneration, hole: Hole, archived: ArchivedRows, rows: Any, shards: int) -> bool:
    """Whether keys belong to the shard, positions are unique, and the rows around the hole equal those of the journal."""
    shard, (first, end) = generation.chain.shard, hole
    unique = len(set(rows["position"].to_pylist())) == rows.num_rows
    if not unique or any(locate_shard(key, shards) != shard for key in set(rows["key"].to_pylist())):
        return False
    for position in (first - 1, end):
        own = _row_at(generation, position)
        theirs = [row for table in archived(shard, position, position + 1) for row in _journal_rows(table).to_pylist()]
        if own is not None and theirs and theirs != [own]:
            return False
    return True


def _row_at(generation: InspectedGeneration, position: int) -> dict[str, object] | None:
    segment = next((each for each in generation.segments if each.first <= position < each.end), None)
    if segment is None or any(first <= position < end for first, end in segment.holes):
        return None
    table = read_table(segment)
    row: dict[str, object] = table.filter(pc.equal(table["position"], position)).to_pylist()[0]
    return row


# --- writing it back -------------------------------------------------------------------------------------------------


def _replace(generation: InspectedGeneration, segment: Segment, runs: dict[Hole, list[Any]], disk: Disk) -> list[str]:
    """Returns the new name of the damaged file, if it exists."""
    path = segment.path
    path.parent.mkdir(0o700, exist_ok=True)
    fresh = path.with_suffix(".repaired")
    disk.replace(fresh, b"".join(_pieces(generation, segment, runs)))
    filled = sum(run.num_rows for of_hole in runs.values() for run in of_hole)
    if scan(fresh, segment.shard, segment.first, segment.end, ended=True)[0].rows != segment.rows + filled:
        raise OSError(f"{fresh} does not read back unchanged")
    kept = [str(_kept_beside(path))] if path.exists() else []
    index_path(path).unlink(missing_ok=True)
    fresh.replace(path)
    disk.sync_file(path.parent)
    return kept


def _pieces(generation: InspectedGeneration, segment: Segment, runs: dict[Hole, list[Any]]) -> Iterator[bytes]:
    data = segment.path.read_bytes() if segment.path.exists() else b""
    yield frame_opening(segment.shard, generation.chain.record.epoch, segment.first)
    for batch in range(len(segment.firsts)):
        first, end, begin, until = segment.limits(batch)
        if (first, end) in runs:
            for run in runs[first, end]:
                yield from _framed(segment.shard, run)
        elif end > first:
            yield data[begin:until]


def _framed(shard: int, run: Any) -> Iterator[bytes]:
    for batch in run.combine_chunks().to_batches(max_chunksize=BATCH_ROWS):
        newest = pc.max(batch.column("timestamp").cast(INT64)).as_py()
        yield frame_batch(batch, shard, batch.column("position")[0].as_py(), newest)


def _kept_beside(path: Path) -> Path:
    names = (path.with_suffix(f".damaged{number}") for number in ("", *(f"-{number}" for number in range(2, 1000))))
    kept = next(name for name in names if not name.exists())
    try:
        os.link(path, kept)
    except OSError:  # not every file system has links
        shutil.copy2(path, kept)
    return kept


def _extent(run: Any) -> Hole:
    first: int = run["position"][0].as_py()
    return first, first + run.num_rows


def _without(manifest: Manifest, filled: set[tuple[int, Hole]]) -> Manifest:
    generations = [
        [msgspec.structs.replace(record, holes=list(_left(record.holes, _of(filled, shard)))) for record in own]
        for shard, own in enumerate(manifest.generations)
    ]
    return msgspec.structs.replace(manifest, revision=manifest.revision + 1, generations=generations)


def _of(filled: set[tuple[int, Hole]], shard: int) -> list[Hole]:
    return sorted(hole for its_shard, hole in filled if its_shard == shard)


def _left(holes: list[Hole], filled: list[Hole]) -> Iterator[Hole]:
    for first, end in holes:
        for begin, until in filled:
            if begin < end and until > first:
                if begin > first:
                    yield first, begin
                first = max(first, until)
        if first < end:
            yield first, end

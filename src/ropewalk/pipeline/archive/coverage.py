"""Which positions the archive's files hold, and how far the journal may delete its own copies of them.

Invariant: a position counts as archived only if a file that the table names now has it: by the statistics of a file
without holes, by the rows of any other file. The extents in the commits are not used here.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from ropewalk.model.journal import GENERATION_SIZE, ShardSpan, first_kept_span
from ropewalk.pipeline.archive.layout import losses
from ropewalk.pipeline.archive.log import Extent, held
from ropewalk.pipeline.checked import BROKEN
from ropewalk.pipeline.tiered import ArchiveFile, archive_files
from ropewalk.protocol.journal_schema import without_views

PositionRun = tuple[int, int]
"""Positions [first, end), all of them there."""


class Missing(NamedTuple):
    """Positions [first, end) of a shard that were archived and that no file of the table has."""

    shard: int
    first: int
    end: int

    @property
    def positions(self) -> str:
        last = self.end - 1
        return f"position {self.first}" if self.first == last else f"positions {self.first} to {last}"

    @property
    def what(self) -> str:
        return f"positions {self.first} to {self.end - 1} were archived and are in none of its files"


def covered(root: str, files: Sequence[ArchiveFile], since: Mapping[int, int] | None = None) -> dict[int, list[PositionRun]]:
    """By shard, the runs of positions that these files have, in order. Rows that stand for lost ones count for all of these.

    `since`, by shard: files with holes that end at or below it are left out, so that they need not be read.
    """
    found: dict[int, list[PositionRun]] = {}
    for file in files:
        if file.dense:
            found.setdefault(file.shard, []).append((file.first, file.end))
        elif file.end > (since or {}).get(file.shard, 0):
            found.setdefault(file.shard, []).extend(_read_runs(Path(root) / file.path))
    return {shard: _merged(runs) for shard, runs in found.items()}


def missing_positions(table: DeltaTable, root: str, without: Collection[str] = ()) -> list[Missing]:
    """What the archive must hold and its files lack. `without`: paths of files that do not count."""
    runs = covered(root, [file for file in archive_files(table) if file.path not in without])
    found: list[Missing] = []
    for extent in held(table):
        reached, end = extent.first, extent.last + 1
        for run in runs.get(extent.shard, ()):
            if run[0] > reached and reached < end:
                found.append(Missing(extent.shard, reached, min(run[0], end)))
            reached = max(reached, run[1])
        if reached < end:
            found.append(Missing(extent.shard, reached, end))
    return found


def archived_end(extents: Sequence[Extent], runs: Sequence[PositionRun], journal: Sequence[ShardSpan]) -> int:
    """The position below which a shard's journal may go: these runs have all of it, from the journal's oldest position on, or
    from where the archive begins if that is later.

    A generation counts only if the older ones that the journal still has, or the archive must hold, are there to their ends.
    """
    kept = [span for span in journal if span.first < span.end]
    oldest = first_kept_span(journal)
    begin = max(extents[0].first, oldest.first if oldest else 0)
    ends = {extent.generation: extent.last + 1 for extent in extents}
    reached = _reached(runs, begin)
    for generation in sorted(ends.keys() | {span.first // GENERATION_SIZE for span in kept}):
        if generation < begin // GENERATION_SIZE:
            continue
        if generation not in ends:
            break
        reached = _reached(runs, max(begin, generation * GENERATION_SIZE))
        own = [span.end for span in kept if span.first // GENERATION_SIZE == generation]
        if reached < max([ends[generation], *own]):
            break
    return reached


def _reached(runs: Sequence[PositionRun], position: int) -> int:
    """The end of the run at this position, or of the last one below it."""
    return max((end for first, end in runs if first <= position), default=0)


def _read_runs(path: Path) -> list[PositionRun]:
    """Nothing of a file that cannot be read."""
    try:
        rows = pq.read_table(path, columns=["position", "event", "detail"], partitioning=None)
        rows = rows.cast(without_views(rows.schema))
        return [*_runs(rows["position"]), *losses(rows)]
    except BROKEN:
        return []


def _runs(positions: pa.ChunkedArray) -> Iterator[PositionRun]:
    if not len(positions):
        return
    ordered = positions.combine_chunks().sort()
    cuts = pc.indices_nonzero(pc.greater(pc.subtract(ordered[1:], ordered[:-1]), 1)).to_pylist()
    for first, last in zip([0, *(cut + 1 for cut in cuts)], [*cuts, len(ordered) - 1], strict=True):
        yield ordered[first].as_py(), ordered[last].as_py() + 1


def _merged(runs: Sequence[PositionRun]) -> list[PositionRun]:
    joined: list[PositionRun] = []
    for first, end in sorted(runs):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        elif first < end:
            joined.append((first, end))
    return joined

"""What compaction costs while an archive grows: round after round rows are appended in small files, and then compacted.

The files are written by the archive's own functions, without Spark. Rows are counted as they are added, not as they are
rewritten: that a row is rewritten more than once is what the figures are about.
"""

import statistics
import tempfile
import time
from pathlib import Path

from msgspec import Struct

from benchmarks.pipeline.cold import FIRST_DAY
from benchmarks.pipeline.rows import archive_rows, stream_names
from benchmarks.report import Bar, Figure, figure
from benchmarks.sizes import Sizes
from ropewalk.pipeline.archive import archived_positions, compact
from ropewalk.pipeline.archive.layout import write_file
from ropewalk.pipeline.archive.log import append

FACTOR = 4
"""How many times larger the larger table is, and the larger round."""

# Rows rewritten for each row added grow with the logarithm of the table: 2.9 in 8 rounds, 4.2 in 32. All of the table in each
# round would be 4.5 and 16.5.
GROWTH_BAR = Bar("ratio", "<=", 2.0)
LINEAR_BAR = Bar("ratio", "<=", 1.3)


class Growth(Struct, frozen=True):
    """Of every round: seconds of its compaction, and rows rewritten. `written`: seconds to write the rows of one round once."""

    seconds: list[float]
    rewritten: list[int]
    written: float


def measure_compaction(sizes: Sizes) -> list[Figure]:
    few, rows = sizes.compact_rounds, sizes.compact_rows
    _grow(1, rows, sizes)  # libraries are loaded with their first use
    grown: list[Growth] = []
    large: list[Growth] = []
    for _ in range(sizes.compact_repeats):
        grown.append(_grow(FACTOR * few, rows, sizes))
        large.append(_grow(1, FACTOR * rows, sizes))
    return [_cost(grown, few, sizes), _linearity(grown, large, sizes), _growth(grown, few, sizes)]


def _grow(rounds: int, rows: int, sizes: Sizes) -> Growth:
    seconds, rewritten = list[float](), list[int]()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for number in range(rounds):
            written = _append(root, number, rows, sizes)
            started = time.perf_counter()
            rewritten.append(compact(directory).rows)
            seconds.append(time.perf_counter() - started)
        if (found := sum(archived_positions(directory).values())) != rounds * rows:
            raise AssertionError(f"{rounds * rows} rows were archived, and after compaction the archive has {found}")
    return Growth(seconds, rewritten, written)


def _append(root: Path, number: int, rows: int, sizes: Sizes) -> float:
    """One round's rows, in as many batches; returns how long it took to write all of them as one file, elsewhere."""
    names = stream_names(sizes.row_streams)
    first, streams = number * rows, [names[row % len(names)] for row in range(rows)]
    offsets = [(first + row) // len(names) + 1 for row in range(rows)]
    table = archive_rows(streams, offsets, first, FIRST_DAY, sizes.row_bytes)
    date, size = FIRST_DAY.date().isoformat(), -(-rows // sizes.compact_batches)
    for batch, start in enumerate(range(0, rows, size), number * sizes.compact_batches):
        append(str(root), "bench", batch, [write_file(root, date, 0, f"bench-{batch}", table.slice(start, size))])
    with tempfile.TemporaryDirectory() as elsewhere:
        started = time.perf_counter()
        write_file(Path(elsewhere), date, 0, "once", table)
        return time.perf_counter() - started


# --- figures ----------------------------------------------------------------------------------------------------------


def _cost(grown: list[Growth], few: int, sizes: Sizes) -> Figure:
    added = FACTOR * few * sizes.compact_rows
    details: dict[str, float] = {
        "rounds": FACTOR * few,
        "rows_a_round": sizes.compact_rows,
        "files_a_round": sizes.compact_batches,
        "rewritten_for_each_added": sum(grown[0].rewritten) / added,
        "longest_round_ms": statistics.median(max(each.seconds) for each in grown) * 1000,
    }
    rounds = [added / sum(each.seconds) for each in grown]
    once = [sizes.compact_rows / each.written for each in grown]
    return figure("m", f"compaction while {added:,} rows are added, in {FACTOR * few} rounds", "rows/s", rounds, once, details)


def _linearity(grown: list[Growth], large: list[Growth], sizes: Sizes) -> Figure:
    rows = sizes.compact_rows
    details: dict[str, float] = {"rows_a_round": FACTOR * rows, "floor_rows_a_round": rows}
    title = f"a round of {FACTOR * rows:,} rows against one of {rows:,}, a row"
    return figure(
        "mr",
        title,
        "µs",
        [each.seconds[0] / (FACTOR * rows) * 1e6 for each in large],
        [each.seconds[0] / rows * 1e6 for each in grown],
        details,
        LINEAR_BAR,
    )


def _growth(grown: list[Growth], few: int, sizes: Sizes) -> Figure:
    many, rows = FACTOR * few, sizes.compact_rows
    details: dict[str, float] = {
        "rounds": many,
        "floor_rounds": few,
        "rewritten_for_each_added": sum(grown[0].rewritten) / (many * rows),
        "floor_rewritten_for_each_added": sum(grown[0].rewritten[:few]) / (few * rows),
    }
    return figure(
        "mx",
        f"a row added in {many} rounds against {few}",
        "µs",
        [sum(each.seconds) / (many * rows) * 1e6 for each in grown],
        [sum(each.seconds[:few]) / (few * rows) * 1e6 for each in grown],
        details,
        GROWTH_BAR,
    )

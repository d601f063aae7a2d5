"""How a batch is cut into tasks. Pure, and the same for the same marks: a batch that is run again reads what it read before."""

from collections.abc import Sequence

from ropewalk.pipeline.offsets import Piece, split
from ropewalk.pipeline.options import BatchLimits

Load = tuple[Piece, ...]
"""What one task reads, in order."""


def plan(pieces: Sequence[Piece], batch_limits: BatchLimits) -> list[Load]:
    """At least `min_partitions` tasks, none of more than `max_partition_rows`; if neither is said, small pieces share tasks."""
    total = sum(piece.rows for piece in pieces)
    if batch_limits.partition_rows and not batch_limits.min_partitions and not batch_limits.max_partition_rows:
        return _shared(pieces, total, max(1, -(-total // batch_limits.partition_rows)))
    return [(part,) for piece in pieces for part in split(piece, _parts(piece, total, batch_limits))]


def _parts(piece: Piece, total: int, batch_limits: BatchLimits) -> int:
    by_rows = -(-piece.rows // batch_limits.max_partition_rows) if batch_limits.max_partition_rows else 1
    # Rounded up, so that small pieces do not eat up what the large ones need to reach the minimum.
    by_number = -(-piece.rows * batch_limits.min_partitions // total) if total else 1
    return max(by_rows, by_number, 1)


def _shared(pieces: Sequence[Piece], total: int, tasks: int) -> list[Load]:
    """A task costs tens of milliseconds before its first row, so there are few, and they are about equal."""
    loads: dict[int, list[Piece]] = {}
    before = 0
    for piece in pieces:
        # The task in which its middle would lie if the batch were cut evenly.
        task = (2 * before + piece.rows) * tasks // (2 * total + 1)
        loads.setdefault(task, []).append(piece)
        before += piece.rows
    return [tuple(load) for load in loads.values()]

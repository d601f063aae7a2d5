"""How a batch is cut into tasks. Pure, and the same for the same marks: a batch that is run again reads what it read before."""

from collections.abc import Sequence

from ropewalk.pipeline.offsets import Piece, split
from ropewalk.pipeline.options import Admission


def plan(pieces: Sequence[Piece], admission: Admission) -> list[Piece]:
    """At least `min_partitions` tasks, by size, and none of more than `max_partition_rows`."""
    total = sum(piece.rows for piece in pieces)
    return [part for piece in pieces for part in split(piece, _parts(piece, total, admission))]


def _parts(piece: Piece, total: int, admission: Admission) -> int:
    by_rows = -(-piece.rows // admission.max_partition_rows) if admission.max_partition_rows else 1
    # Rounded up, so that small pieces do not eat up what the large ones need to reach the minimum.
    by_number = -(-piece.rows * admission.min_partitions // total) if total else 1
    return max(by_rows, by_number, 1)

"""Named readers of the journal: their marks, their lag, and the rows that must be kept for them.

Invariant: a mark never goes back. A later generation of a shard has higher positions than all earlier ones, so the higher
position is the later mark.
"""

from collections.abc import Iterable, Sequence

from ropewalk.model.journal import GENERATION_BITS, Consumer, Marks, ShardMark, ShardSpan


def pin_marks(marks: Marks, given: Marks) -> dict[int, ShardMark]:
    """Returns the marks, with given ones for shards that have none."""
    return _in_order({**given, **marks})


def move_marks(marks: Marks, given: Marks) -> dict[int, ShardMark]:
    """Returns the later of two marks for each shard."""
    ahead = {shard: mark for shard, mark in given.items() if shard not in marks or mark.position > marks[shard].position}
    return _in_order({**marks, **ahead})


def is_valid_mark(own: Sequence[ShardSpan], mark: ShardMark) -> bool:
    """False if a shard with these spans never had this position in this epoch. If it no longer knows the generation of the
    position, it can only reject the epochs of other generations."""
    if not mark.epoch:
        return mark.position == 0
    generation = [span for span in own if span.first >> GENERATION_BITS == mark.position >> GENERATION_BITS]
    if generation:
        return mark.epoch == generation[-1].epoch and mark.position <= generation[-1].end
    return all(span.epoch != mark.epoch for span in own)


def count_lag(marks: Marks, spans: Sequence[ShardSpan]) -> dict[int, int]:
    """The number of readable rows from each mark on, by shard."""
    rows = dict.fromkeys(marks, 0)
    for span in spans:
        if span.shard in marks:
            rows[span.shard] += max(0, span.end - max(span.first, marks[span.shard].position))
    return rows


def find_needed_positions(consumers: Iterable[Consumer]) -> dict[int, int]:
    """The lowest position by shard that a consumer has not read."""
    lowest: dict[int, int] = {}
    for consumer in consumers:
        for shard, mark in consumer.marks.items():
            lowest[shard] = min(mark.position, lowest.get(shard, mark.position))
    return lowest


def _in_order(marks: Marks) -> dict[int, ShardMark]:
    return dict(sorted(marks.items()))

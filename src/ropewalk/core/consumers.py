"""Named readers of the journal: how their marks move, how far they lag, and which rows must be kept for them.

Invariant: a mark never goes back. A later generation of a shard has higher positions than all earlier ones, so positions
alone tell which of two marks is further.
"""

from collections.abc import Iterable, Sequence

from ropewalk.model.journal import GENERATION_BITS, Consumer, Marks, ShardMark, ShardSpan


def pinned(marks: Marks, given: Marks) -> dict[int, ShardMark]:
    """What was said first counts, shard by shard."""
    return _in_order({**given, **marks})


def moved(marks: Marks, given: Marks) -> dict[int, ShardMark]:
    """The further of two marks counts, shard by shard."""
    ahead = {shard: mark for shard, mark in given.items() if shard not in marks or mark.position > marks[shard].position}
    return _in_order({**marks, **ahead})


def can_have_given(own: Sequence[ShardSpan], mark: ShardMark) -> bool:
    """Whether a shard with these spans has been at this position under this epoch. Where it no longer knows the generation
    that the position lies in, only the epochs of the others are known to be wrong."""
    if not mark.epoch:
        return mark.position == 0
    life = [span for span in own if span.first >> GENERATION_BITS == mark.position >> GENERATION_BITS]
    if life:
        return mark.epoch == life[-1].epoch and mark.position <= life[-1].end
    return all(span.epoch != mark.epoch for span in own)


def lag(marks: Marks, spans: Sequence[ShardSpan]) -> dict[int, int]:
    """Rows that can be read and lie before it, by shard."""
    rows = dict.fromkeys(marks, 0)
    for span in spans:
        if span.shard in marks:
            rows[span.shard] += max(0, span.end - max(span.first, marks[span.shard].position))
    return rows


def needed_from(consumers: Iterable[Consumer]) -> dict[int, int]:
    """By shard the lowest position that one of them has yet to read."""
    lowest: dict[int, int] = {}
    for consumer in consumers:
        for shard, mark in consumer.marks.items():
            lowest[shard] = min(mark.position, lowest.get(shard, mark.position))
    return lowest


def _in_order(marks: Marks) -> dict[int, ShardMark]:
    return dict(sorted(marks.items()))

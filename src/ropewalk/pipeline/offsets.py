"""How far a query has come: one mark for each shard, and what lies between two of them. Pure.

Spark compares offsets as text, so they have one spelling: every shard, in order of number, the same keys in the same order.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NotRequired, TypedDict

from msgspec import Struct

from ropewalk.model.journal import GENERATION_SIZE, Marks, ShardMark, ShardSpan, first_kept_span


class MarkJson(TypedDict):
    """`e`: the generation's name, `p`: the position. `generations`: name, first and end of all but the last, only in
    `end_offsets`."""

    e: str
    p: int
    generations: NotRequired[list[tuple[str, int, int]]]


OffsetJson = dict[str, MarkJson]


class PositionRange(Struct, frozen=True):
    """Positions [first, end) of one generation of a shard. `replaced`: the journal was replaced, so that the number of rows
    is unknown."""

    shard: int
    generation: str
    first: int
    end: int
    replaced: bool = False

    @property
    def rows(self) -> int:
        return 0 if self.replaced else self.end - self.first


Spans = Mapping[int, Sequence[ShardSpan]]
"""By shard, the oldest first; one generation of a shard may have several."""


def encode(marks: Marks) -> OffsetJson:
    return {str(shard): {"e": marks[shard].epoch, "p": marks[shard].position} for shard in sorted(marks)}


def decode(offset: OffsetJson) -> Marks:
    return {int(shard): ShardMark(mark["e"], mark["p"]) for shard, mark in offset.items()}


def by_shard(spans: Sequence[ShardSpan], shards: int) -> dict[int, list[ShardSpan]]:
    """Includes shards without rows, with an empty list."""
    found: dict[int, list[ShardSpan]] = {shard: [] for shard in range(shards)}
    for span in spans:
        found.setdefault(span.shard, []).append(span)
    return found


def earliest(spans: Spans) -> Marks:
    kept = {shard: first_kept_span(own) for shard, own in spans.items()}
    return {shard: ShardMark(span.epoch, span.first) if span else ShardMark("", 0) for shard, span in kept.items()}


def latest(spans: Spans) -> Marks:
    return {shard: ShardMark(own[-1].epoch, own[-1].end) if own else ShardMark("", 0) for shard, own in spans.items()}


def end_offsets(spans: Spans) -> OffsetJson:
    """The end of the journal, and its older generations: a query may still read one of them."""
    ends = encode(latest(spans))
    for shard, own in spans.items():
        if older := [(generation.epoch, generation.first, generation.end) for generation in _generations(own)[:-1]]:
            ends[str(shard)]["generations"] = older
    return ends


def rows_behind(shard: int, read: MarkJson | None, end: MarkJson) -> int:
    """Rows between a query's mark (None: it has read nothing of the shard) and the end from `end_offsets`."""
    own = [ShardSpan(shard, *generation) for generation in end.get("generations", ())]
    last = ShardSpan(shard, end["e"], end["p"] - end["p"] % GENERATION_SIZE, end["p"])
    start = ShardMark(read["e"], read["p"]) if read else ShardMark("", 0)
    return sum(positions.rows for positions in ranges_between(shard, [*own, last], start, ShardMark(end["e"], end["p"])))


def generation_start(span: ShardSpan) -> int:
    """Where the generation of a span began."""
    return span.first - span.first % GENERATION_SIZE


def ranges_between(shard: int, own: Sequence[ShardSpan], start: ShardMark, end: ShardMark) -> list[PositionRange]:
    """The ranges between two marks of a shard, in order. They may include deleted positions, which the reader handles."""
    if start.epoch == end.epoch:
        return _within(shard, start, end)
    generations = _generations(own)
    names = [generation.epoch for generation in generations]
    if start.epoch in names:
        at = names.index(start.epoch)
        head, following = (
            [PositionRange(shard, start.epoch, start.position, generations[at].end)],
            _whole(generations[at + 1 :]),
        )
    elif _of_an_empty_generation(generations, start):
        head, following = [], _whole([generation for generation in generations if generation.first > start.position])
    else:
        head, following = _forgotten(shard, generations, start), generations
    return _present(head) + _present([_until(shard, generation, end) for generation in _up_to(following, end.epoch)])


def remaining(spans: Spans, start: Marks, end: Marks) -> dict[int, int]:
    """How many rows lie between, by shard."""
    return {
        shard: sum(positions.rows for positions in ranges_between(shard, spans.get(shard, ()), start[shard], end[shard]))
        for shard in end
    }


def advance(shard: int, own: Sequence[ShardSpan], start: ShardMark, end: ShardMark, rows: int) -> ShardMark:
    """The mark that lies `rows` behind `start` on the way to `end`."""
    left = rows
    for positions in ranges_between(shard, own, start, end):
        if positions.rows > left:
            return ShardMark(positions.generation, positions.first + left)
        left -= positions.rows
    return end


def split(positions: PositionRange, parts: int) -> list[PositionRange]:
    """Cut into at most `parts` ranges of nearly the same size, in order."""
    if positions.replaced:
        return [positions]
    parts = max(1, min(parts, positions.rows))
    cuts = [positions.first + positions.rows * part // parts for part in range(parts + 1)]
    return [PositionRange(positions.shard, positions.generation, first, end) for first, end in pairwise(cuts)]


def _within(shard: int, start: ShardMark, end: ShardMark) -> list[PositionRange]:
    # The end is below the start: the journal lost rows that were read, and assigns their positions again.
    if end.position < start.position:
        return [PositionRange(shard, start.epoch, start.position, start.position, replaced=True)]
    return _present([PositionRange(shard, start.epoch, start.position, end.position)])


def _present(ranges: list[PositionRange]) -> list[PositionRange]:
    return [positions for positions in ranges if positions.replaced or positions.rows > 0]


def _generations(own: Sequence[ShardSpan]) -> list[ShardSpan]:
    """One span per generation. The journal lists several where rows were damaged, with the holes between them."""
    generations: list[ShardSpan] = []
    for span in own:
        if generations and generations[-1].epoch == span.epoch:
            generations[-1] = ShardSpan(span.shard, span.epoch, generations[-1].first, span.end)
        else:
            generations.append(span)
    return generations


def _whole(generations: Sequence[ShardSpan]) -> list[ShardSpan]:
    """From their first positions: a reader of the generation before has missed the deleted rows."""
    return [
        ShardSpan(generation.shard, generation.epoch, generation_start(generation), generation.end)
        for generation in generations
    ]


def _of_an_empty_generation(generations: Sequence[ShardSpan], start: ShardMark) -> bool:
    """The journal drops generations without rows. A mark at the beginning of one has missed nothing."""
    begins = [generation_start(generation) for generation in generations]
    followed = start.position < max(begins, default=0) and start.position not in begins
    return start.epoch != "" and start.position % GENERATION_SIZE == 0 and followed


def _forgotten(shard: int, generations: Sequence[ShardSpan], start: ShardMark) -> list[PositionRange]:
    """The journal does not know the generation of `start`: it was replaced, and the end of the old one is unknown."""
    # At the beginning of another journal's shard nothing was read yet that could be missed.
    if start.epoch == "" or start.position == 0:
        return []
    return [
        PositionRange(
            shard, start.epoch, start.position, max(start.position, generations[0].first if generations else 0), replaced=True
        )
    ]


def _up_to(generations: Sequence[ShardSpan], name: str) -> Sequence[ShardSpan]:
    names = [generation.epoch for generation in generations]
    return generations[: names.index(name) + 1] if name in names else generations


def _until(shard: int, span: ShardSpan, end: ShardMark) -> PositionRange:
    return PositionRange(shard, span.epoch, span.first, end.position if span.epoch == end.epoch else span.end)

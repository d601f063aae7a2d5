"""How far a query has come: one mark for each shard, and what lies between two of them. Pure.

Spark compares offsets as text, so they have one spelling: every shard, in order of number, the same keys in the same order.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NotRequired, TypedDict

from msgspec import Struct

from ropewalk.model.journal import GENERATION_SIZE, Marks, ShardMark, ShardSpan, oldest_kept


class MarkJson(TypedDict):
    """`generations`, only in what is told of the journal's end: epoch, first and end of each generation of the shard before
    the last."""

    e: str
    p: int
    generations: NotRequired[list[tuple[str, int, int]]]


OffsetJson = dict[str, MarkJson]


class Piece(Struct, frozen=True):
    """Positions [first, end) of one shard under one epoch. With `replaced` nobody knows how many rows there were in it."""

    shard: int
    epoch: str
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
    """A shard nobody has written to yet is there too, without spans."""
    found: dict[int, list[ShardSpan]] = {shard: [] for shard in range(shards)}
    for span in spans:
        found.setdefault(span.shard, []).append(span)
    return found


def earliest(spans: Spans) -> Marks:
    kept = {shard: oldest_kept(own) for shard, own in spans.items()}
    return {shard: ShardMark(span.epoch, span.first) if span else ShardMark("", 0) for shard, span in kept.items()}


def latest(spans: Spans) -> Marks:
    return {shard: ShardMark(own[-1].epoch, own[-1].end) if own else ShardMark("", 0) for shard, own in spans.items()}


def told(spans: Spans) -> OffsetJson:
    """Where the journal ends, with what it has of older generations: a query may still be in one of them."""
    ends = encode(latest(spans))
    for shard, own in spans.items():
        if older := [(generation.epoch, generation.first, generation.end) for generation in _generations(own)[:-1]]:
            ends[str(shard)]["generations"] = older
    return ends


def behind(shard: int, read: MarkJson | None, end: MarkJson) -> int:
    """Rows between a query's mark (None: it has read nothing of the shard) and the end that was `told`."""
    own = [ShardSpan(shard, *generation) for generation in end.get("generations", ())]
    last = ShardSpan(shard, end["e"], end["p"] - end["p"] % GENERATION_SIZE, end["p"])
    start = ShardMark(read["e"], read["p"]) if read else ShardMark("", 0)
    return sum(piece.rows for piece in between(shard, [*own, last], start, ShardMark(end["e"], end["p"])))


def begin_of(span: ShardSpan) -> int:
    """Where the generation of a span began."""
    return span.first - span.first % GENERATION_SIZE


def between(shard: int, own: Sequence[ShardSpan], start: ShardMark, end: ShardMark) -> list[Piece]:
    """What lies between two marks of a shard, in order. Pieces may reach below what is still there: the reader sees to that."""
    if start.epoch == end.epoch:
        return _within(shard, start, end)
    generations = _generations(own)
    epochs = [generation.epoch for generation in generations]
    if start.epoch in epochs:
        at = epochs.index(start.epoch)
        head, following = [Piece(shard, start.epoch, start.position, generations[at].end)], _whole(generations[at + 1 :])
    elif _of_an_empty_generation(generations, start):
        head, following = [], _whole([generation for generation in generations if generation.first > start.position])
    else:
        head, following = _forgotten(shard, generations, start), generations
    return _present(head) + _present([_until(shard, generation, end) for generation in _up_to(following, end.epoch)])


def remaining(spans: Spans, start: Marks, end: Marks) -> dict[int, int]:
    """How many rows lie between, by shard."""
    return {shard: sum(piece.rows for piece in between(shard, spans.get(shard, ()), start[shard], end[shard])) for shard in end}


def advance(shard: int, own: Sequence[ShardSpan], start: ShardMark, end: ShardMark, rows: int) -> ShardMark:
    """The mark that lies `rows` behind `start` on the way to `end`."""
    left = rows
    for piece in between(shard, own, start, end):
        if piece.rows > left:
            return ShardMark(piece.epoch, piece.first + left)
        left -= piece.rows
    return end


def split(piece: Piece, parts: int) -> list[Piece]:
    """Cut into at most `parts` pieces of nearly the same size, in order."""
    if piece.replaced:
        return [piece]
    parts = max(1, min(parts, piece.rows))
    cuts = [piece.first + piece.rows * part // parts for part in range(parts + 1)]
    return [Piece(piece.shard, piece.epoch, first, end) for first, end in pairwise(cuts)]


def _within(shard: int, start: ShardMark, end: ShardMark) -> list[Piece]:
    # An end that lies before the start: the journal has lost what was read from it, and gives its positions again.
    if end.position < start.position:
        return [Piece(shard, start.epoch, start.position, start.position, replaced=True)]
    return _present([Piece(shard, start.epoch, start.position, end.position)])


def _present(pieces: list[Piece]) -> list[Piece]:
    return [piece for piece in pieces if piece.replaced or piece.rows > 0]


def _generations(own: Sequence[ShardSpan]) -> list[ShardSpan]:
    """One span for each epoch. Where rows were damaged, the journal tells several, and the holes lie between them."""
    generations: list[ShardSpan] = []
    for span in own:
        if generations and generations[-1].epoch == span.epoch:
            generations[-1] = ShardSpan(span.shard, span.epoch, generations[-1].first, span.end)
        else:
            generations.append(span)
    return generations


def _whole(generations: Sequence[ShardSpan]) -> list[ShardSpan]:
    """From their beginnings: whoever comes from the generation before has missed what is gone of them."""
    return [ShardSpan(generation.shard, generation.epoch, begin_of(generation), generation.end) for generation in generations]


def _of_an_empty_generation(generations: Sequence[ShardSpan], start: ShardMark) -> bool:
    """A generation in which nothing happened is forgotten by the journal itself. A mark at its beginning has missed nothing
    of it."""
    begins = [begin_of(generation) for generation in generations]
    followed = start.position < max(begins, default=0) and start.position not in begins
    return start.epoch != "" and start.position % GENERATION_SIZE == 0 and followed


def _forgotten(shard: int, generations: Sequence[ShardSpan], start: ShardMark) -> list[Piece]:
    """The journal does not know the epoch of `start`, so it is another one, and how the old one went on nobody can say."""
    # At the beginning of another journal's shard nothing was read yet that could be missed.
    if start.epoch == "" or start.position == 0:
        return []
    return [
        Piece(
            shard, start.epoch, start.position, max(start.position, generations[0].first if generations else 0), replaced=True
        )
    ]


def _up_to(generations: Sequence[ShardSpan], epoch: str) -> Sequence[ShardSpan]:
    epochs = [generation.epoch for generation in generations]
    return generations[: epochs.index(epoch) + 1] if epoch in epochs else generations


def _until(shard: int, span: ShardSpan, end: ShardMark) -> Piece:
    return Piece(shard, span.epoch, span.first, end.position if span.epoch == end.epoch else span.end)

"""Filters that Spark hands down to a batch read, as far as they are understood; the rest Spark applies itself.

Positions and shards spare reading, streams and offsets spare only the way from Python to the JVM.
"""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from ropewalk.pipeline.offsets import Piece
from ropewalk.pipeline.rows import KeptRows

_FARTHEST = 1 << 63


class Pushed(Struct, frozen=True):
    """What all filters together leave: shards, positions [first, end) and conditions on rows."""

    kept: KeptRows = KeptRows()
    shards: frozenset[int] | None = None
    first: int = 0
    end: int = _FARTHEST

    def clip(self, pieces: Iterable[Piece]) -> list[Piece]:
        chosen = (piece for piece in pieces if self.shards is None or piece.shard in self.shards)
        clipped = (replace(piece, first=max(piece.first, self.first), end=min(piece.end, self.end)) for piece in chosen)
        return [piece for piece in clipped if piece.rows > 0]


def absorb(pushed: Pushed, condition: Filter) -> Pushed | None:
    """With one more condition; None for one that is not understood."""
    match condition:
        case EqualTo(attribute=("stream",), value=str(name)):
            return _streams(pushed, (name,))
        case In(attribute=("stream",), value=names) if all(isinstance(name, str) for name in names):
            return _streams(pushed, tuple(str(name) for name in names))
        case StringStartsWith(attribute=("stream",), value=prefix) if not pushed.kept.prefix:
            return replace(pushed, kept=replace(pushed.kept, prefix=prefix))
        case EqualTo(attribute=("partition",), value=int(shard)):
            return _shards(pushed, {shard})
        case In(attribute=("partition",), value=shards) if all(isinstance(shard, int) for shard in shards):
            return _shards(pushed, {int(str(shard)) for shard in shards})
        case _:
            return _range(pushed, condition)


def _range(pushed: Pushed, condition: Filter) -> Pushed | None:
    match condition:
        case EqualTo(attribute=(name,), value=int(value)):
            return _between(pushed, name, value, value + 1)
        case GreaterThan(attribute=(name,), value=int(value)):
            return _between(pushed, name, value + 1, _FARTHEST)
        case GreaterThanOrEqual(attribute=(name,), value=int(value)):
            return _between(pushed, name, value, _FARTHEST)
        case LessThan(attribute=(name,), value=int(value)):
            return _between(pushed, name, None, value)
        case LessThanOrEqual(attribute=(name,), value=int(value)):
            return _between(pushed, name, None, value + 1)
        case _:
            return None


def _between(pushed: Pushed, name: str, first: int | None, end: int) -> Pushed | None:
    kept = pushed.kept
    match name:
        case "position":
            return replace(pushed, first=max(pushed.first, first or 0), end=min(pushed.end, end))
        case "offset":
            lowest = first if kept.first_offset is None else max(kept.first_offset, first or kept.first_offset)
            highest = end if kept.end_offset is None else min(kept.end_offset, end)
            return replace(pushed, kept=replace(kept, first_offset=lowest, end_offset=highest if highest < _FARTHEST else None))
        case _:
            return None


def _streams(pushed: Pushed, names: tuple[str, ...]) -> Pushed:
    known = pushed.kept.streams
    both = names if known is None else tuple(name for name in names if name in known)
    return replace(pushed, kept=replace(pushed.kept, streams=both))


def _shards(pushed: Pushed, shards: set[int]) -> Pushed:
    both = shards if pushed.shards is None else shards & pushed.shards
    return replace(pushed, shards=frozenset(both))

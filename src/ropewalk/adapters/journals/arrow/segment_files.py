"""Tells the segments in a shard's directory from foreign files.

Invariant: a file without our rows and header is taken for a damaged segment only where a segment may have been. Otherwise it
is a stray file: it is reported, never used and never changed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from ropewalk.adapters.journals.arrow.frames import BATCH, OPENING, frame_at, frames_after
from ropewalk.adapters.journals.arrow.segment import mapped
from ropewalk.model.journal import GENERATION_BITS

POSITIONS = 1 << 63
"""All positions lie below this: they are signed 64-bit numbers in Arrow."""


class Listing(Struct, frozen=True):
    """`segments` are by generation, each in order."""

    segments: dict[int, list[Path]]
    strays: list[Path]


class Promised(Struct, frozen=True):
    """How far each known generation has come. `exact`: those of which it is certain that no segment can begin behind that."""

    ends: Mapping[int, int]
    exact: frozenset[int]


def listing(directory: Path, shard: int, promised: Promised) -> Listing:
    named: dict[int, list[Path]] = {}
    strays: list[Path] = []
    for path in sorted((directory / f"shard={shard:02}").glob("*.arrow")):
        if _is_position(path.stem) and path.is_file():
            named.setdefault(int(path.stem) >> GENERATION_BITS, []).append(path)
        else:
            strays.append(path)
    segments: dict[int, list[Path]] = {}
    for generation, paths in named.items():
        ours = {path for path in paths if _is_ours(path, shard)}
        known = ours or generation in promised.ends or _just_begun(generation, paths, promised)
        kept: list[Path] = []
        for path in paths:
            if path in ours or (known and _may_begin(path, generation, kept, promised)):
                kept.append(path)
            else:
                strays.append(path)
        if kept:
            segments[generation] = kept
    return Listing(segments, sorted(strays))


def _is_position(stem: str) -> bool:
    return stem.isascii() and stem.isdecimal() and len(stem) == 20 and int(stem) < POSITIONS


def _is_ours(path: Path, shard: int) -> bool:
    """It has the header of the segment that it is named as, or a batch that can be in it."""
    first = int(path.stem)
    with mapped(path) as data:
        opening = frame_at(data, 0)
        if opening is not None and (opening.magic, opening.shard, opening.first) == (OPENING, shard, first):
            return True
        generation = first >> GENERATION_BITS
        return any(
            (frame.magic, frame.shard, frame.first >> GENERATION_BITS) == (BATCH, shard, generation) and frame.first >= first
            for _, frame in frames_after(data, 0)
        )


def _just_begun(generation: int, paths: Sequence[Path], promised: Promised) -> bool:
    """By a start that was cut off before it could record the new generation."""
    return generation == max(promised.ends, default=-1) + 1 and [int(path.stem) for path in paths] == [
        generation << GENERATION_BITS
    ]


def _may_begin(path: Path, generation: int, before: Sequence[Path], promised: Promised) -> bool:
    """Whether a segment of which nothing is left can have begun here: where the one before it ended, or where nobody knows."""
    first = int(path.stem)
    if before and (reached := _reached(before[-1])) >= first:
        return reached == first
    return generation not in promised.exact or first <= promised.ends[generation]


def _reached(path: Path) -> int:
    """Where the last good batch of a segment ends; its beginning if there is none."""
    with mapped(path) as data:
        ends = (frame.first + frame.rows for _, frame in frames_after(data, 0) if frame.magic == BATCH)
        return max(ends, default=int(path.stem))

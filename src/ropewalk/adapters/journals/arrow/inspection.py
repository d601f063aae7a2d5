"""Reads the files of a shard at start, before anything is decided or changed.

Invariant: segments that are recent enough to matter are read completely. Older ones are taken by their index, and are
checked when they are read.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from msgspec import Struct

from ropewalk.adapters.journals.arrow.frames import OPENING, Frame, frame_at
from ropewalk.adapters.journals.arrow.manifest import GenerationRecord
from ropewalk.adapters.journals.arrow.segment import Hole, Segment, load_index, mapped, scan
from ropewalk.adapters.journals.arrow.state import load_state

ALWAYS_READ = 2
"""Last segments of the generation in use that are read whatever their age: the last group lies there."""


class Chain(Struct, frozen=True):
    """The files of a generation. Positions below `promised` were written; `ended`: and no others, so far as anybody was told.

    `left_over`: files that should be gone already.
    `strays`: files in the shard's directory that are no segments; the generation in use has them.
    """

    shard: int
    record: GenerationRecord
    paths: Sequence[Path]
    left_over: Sequence[Path]
    promised: int
    ended: bool
    in_use: bool
    strays: Sequence[Path] = ()

    def limit(self, number: int) -> tuple[int, bool]:
        """How far the positions of a file reach, and whether nothing else can be in it. A segment begins where the one before
        it ended, whatever else is known."""
        if number + 1 < len(self.paths):
            return int(self.paths[number + 1].stem), True
        return self.promised, self.ended


class InspectedGeneration(Struct):
    """A generation as it is on disk.

    `read_from`: segments from this one on were read to the last bit. `spare`: bytes behind the last whole batch of the last
    segment. `unborn`: last files in which nothing was ever promised, and which cannot be written to. `lost`: holes that nobody
    knew of, or that lie in what was read.
    """

    chain: Chain
    segments: list[Segment] = []
    read_from: int = 0
    tail: list[Frame] = []
    spare: int = 0
    unborn: list[Path] = []
    lost: list[Hole] = []

    @property
    def missing_head(self) -> list[Hole]:
        return missing_head(self.chain)

    @property
    def end(self) -> int:
        return self.segments[-1].end if self.segments else max(self.chain.record.first, self.chain.promised)


def missing_head(chain: Chain) -> list[Hole]:
    """Positions that should lie before the first file, or in the files of a generation that has none. What retention removed
    is not among them: the record tells the oldest position that was kept, and is written before a file is removed."""
    first = chain.record.first
    end = int(chain.paths[0].stem) if chain.paths else chain.promised
    return [(first, end)] if end > first else []


class Scans:
    """What was read to the last bit, so that nothing is read twice."""

    def __init__(self) -> None:
        self._done: dict[Path, tuple[Segment, list[Frame]]] = {}

    def scan(self, chain: Chain, number: int) -> tuple[Segment, list[Frame]]:
        path = chain.paths[number]
        if path not in self._done:
            self._done[path] = scan(path, chain.shard, int(path.stem), *chain.limit(number))
        return self._done[path]

    def newest(self, shards: list[list[Chain]]) -> int:
        """The time of the newest row in the segments that are read whatever their age."""
        last = (
            self.scan(chain, number)[0].newest
            for chains in shards
            for chain in chains
            for number in range(max(0, len(chain.paths) - ALWAYS_READ), len(chain.paths))
        )
        return max(last, default=0)


def inspect(chain: Chain, oldest: int, scans: Scans) -> InspectedGeneration:
    """Follow a generation's segments from one to the next."""
    found = InspectedGeneration(chain, [], _read_from(chain, oldest))
    known = chain.record.holes
    found.lost = found.missing_head if chain.in_use else list(_unknown(found.missing_head, known))
    for number, path in enumerate(chain.paths):
        segment = _indexed(chain, number) if number < found.read_from else None
        if segment is None:
            segment, tail = scans.scan(chain, number)
            found.tail = tail or found.tail
        found.spare = path.stat().st_size - segment.size
        if not segment.size and not segment.holes:
            found.unborn = [path]
            break
        found.segments.append(segment)
        judged = segment.holes if chain.in_use and number >= found.read_from else list(_unknown(segment.holes, known))
        found.lost = [*found.lost, *judged]
    return found


def _indexed(chain: Chain, number: int) -> Segment | None:
    """The segment by its index, with the holes that are known of it; None if the index cannot be right."""
    path = chain.paths[number]
    segment = load_index(path, chain.shard, int(path.stem))
    limit, ended = chain.limit(number)
    if segment is None or (ended and segment.end > limit):
        return None
    segment.holes = [
        (max(first, segment.first), min(end, segment.end))
        for first, end in chain.record.holes
        if first < segment.end and end > segment.first
    ]
    if segment.end < limit:
        segment.skip(limit, segment.size)
    return segment


def _unknown(holes: Sequence[Hole], known: Sequence[Hole]) -> Iterator[Hole]:
    return (hole for hole in holes if not any(first <= hole[0] and hole[1] <= end for first, end in known))


def _read_from(chain: Chain, oldest: int) -> int:
    """The first segment that must be read: all before it hold older rows only, and are summed up in the state beside it.

    Of a former generation, whose state nobody needs, all may be so old. Then none is read: readers find out what is good of it.
    """
    paths, shard = chain.paths, chain.shard
    indexed = [load_index(path, shard, int(path.stem)) for path in paths]
    number = max(0, len(paths) - (ALWAYS_READ if chain.in_use else 0))
    while number > 0:
        old = all(segment is not None and segment.newest < oldest for segment in indexed[:number])
        if old and (not chain.in_use or load_state(paths[number], shard, int(paths[number].stem)) is not None):
            break
        number -= 1
    return number


def named_by_its_opening(paths: Sequence[Path]) -> str:
    """The epoch that the segments themselves carry; "" when none of them can be read."""
    for path in paths:
        with mapped(path) as data:
            opening = frame_at(data, 0)
            if opening is not None and opening.magic == OPENING:
                schema = pa.ipc.read_schema(pa.py_buffer(bytes(data[: opening.length])))
                return str(schema.metadata[b"ropewalk.epoch"], "utf-8")
    return ""

"""Segment files: an Arrow IPC stream of consecutive positions each, the place of each batch in it, and which files of a
directory are segments at all.

Invariant: `end` and `size` move only when everything below them is written, so that a reader who goes by them needs no lock.
A file without our rows and header is taken for a damaged segment only where a segment may have been. Otherwise it is a stray
file: it is reported, never used and never changed.
"""

import mmap
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
from msgspec import Struct

from ropewalk.adapters.journals.arrow.batches import BATCH, OPENING, Frame, frame_at, frame_opening, frames_after
from ropewalk.adapters.journals.arrow.disk import Disk
from ropewalk.model.journal import GENERATION_BITS

INDEX = struct.Struct("<4sIQQQqI")  # magic, batches, first, end, size, newest, shard; then the two columns and a checksum
INDEX_MAGIC = b"RwI1"


Hole = tuple[int, int]
"""Positions [first, end) that were written and cannot be read any more."""


class Segment:
    """`newest` is the latest time in it in microseconds. `sealed`: its index is on disk, and so is the state after it.

    `holes` are replaced, never changed in place. Bad bytes count as a batch, so that every position and every byte of the
    segment belong to one: of a hole's positions, or of none where bytes lie between two batches that join up.
    """

    __slots__ = ("end", "first", "firsts", "holes", "newest", "offsets", "path", "sealed", "shard", "size")

    def __init__(self, path: Path, shard: int, first: int, size: int) -> None:
        self.path = path
        self.shard = shard
        self.first = first
        self.end = first
        self.size = size  # at first that of the opening
        self.newest = 0
        self.sealed = False
        self.holes: list[Hole] = []
        self.firsts = array("Q")
        self.offsets = array("Q")

    @property
    def rows(self) -> int:
        """Those that can be read."""
        lost = sum(end - first for first, end in self.holes) if self.holes else 0
        return self.end - self.first - lost

    @property
    def headless(self) -> bool:
        """It has rows, but no header: Arrow libraries cannot open it."""
        return self.rows > 0 and self.offsets[0] == 0

    def add(self, length: int, rows: int, newest: int) -> None:
        self.offsets.append(self.size)
        self.firsts.append(self.end)
        self.newest = max(self.newest, newest)
        self.size += length
        self.end += rows  # last: from here on readers look for it

    def skip(self, end: int, until: int) -> None:
        """The bytes up to `until` are bad, and the positions up to `end` are lost with them."""
        self.offsets.append(self.size)
        self.firsts.append(self.end)
        if end > self.end:
            self.holes = [*self.holes, (self.end, end)]
        self.size, self.end = until, end

    def drop_last(self) -> None:
        self.end = self.firsts.pop()
        self.size = self.offsets.pop()

    def batch_of(self, position: int) -> int:
        """The number of the batch that holds this position, which must be one of the segment's."""
        return bisect_right(self.firsts, position) - 1

    def limits(self, batch: int) -> tuple[int, int, int, int]:
        """(first position, end position, first byte, end byte) of a batch that readers may see."""
        first, begin = self.firsts[batch], self.offsets[batch]
        if batch + 1 < len(self.firsts):
            return first, self.firsts[batch + 1], begin, self.offsets[batch + 1]
        return first, self.end, begin, self.size

    def pieces(self) -> list[tuple[int, int]]:
        """The bytes of its good batches; what joins up is one piece."""
        found: list[tuple[int, int]] = []
        for batch in range(len(self.firsts)):
            first, end, begin, until = self.limits(batch)
            if first == end or any(hole <= first < hole_end for hole, hole_end in self.holes):
                continue
            if found and found[-1][1] == begin:
                found[-1] = (found[-1][0], until)
            else:
                found.append((begin, until))
        return found


def segment_path(directory: Path, shard: int, first: int) -> Path:
    return directory / f"shard={shard:02}" / f"{first:020}.arrow"


def index_path(segment: Path) -> Path:
    return segment.with_suffix(".idx")


def state_path(segment: Path) -> Path:
    return segment.with_suffix(".state")


def remove(path: Path) -> None:
    for each in (index_path(path), state_path(path), path):
        each.unlink(missing_ok=True)


# --- reading a segment back ------------------------------------------------------------------------------------------


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """For a look at many files, before a server serves and beside it. A mapped file that is cut short ends the process, so what
    a server reads while it serves is read into memory instead."""
    with path.open("rb") as file:
        if not file.seek(0, 2):
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data, memoryview(data) as view:
            yield view


def scan(path: Path, shard: int, first: int, promised: int, ended: bool) -> tuple[Segment, list[Frame]]:
    """Everything in it that is whole, every bit of it checked, and the batches of its last group.

    Positions below `promised` were in it, and those that are not found are holes. Behind bad bytes it is read on where a
    batch of such positions begins. `ended`: nothing else was ever promised. Else a batch that follows the others counts too,
    and bytes behind the last one are left out. A segment that has neither an opening nor batches has no bytes.
    """
    tail: list[Frame] = []
    with memoryview(path.read_bytes()) as data:
        opening = frame_at(data, 0)
        begins = opening is not None and (opening.magic, opening.shard, opening.first) == (OPENING, shard, first)
        segment = Segment(path, shard, first, opening.length if begins and opening is not None else 0)
        for at, frame in _batches(data, segment, promised, ended):
            if at > segment.size or frame.first > segment.end:
                segment.skip(frame.first, at)
                tail = []
            segment.add(frame.length, frame.rows, frame.newest)
            tail = [*tail, frame] if tail and tail[-1].group == frame.group else [frame]
        if segment.end < promised or (ended and segment.size < len(data)):
            segment.skip(max(segment.end, promised), len(data))
    return segment, tail


def _batches(data: memoryview, segment: Segment, promised: int, ended: bool) -> Iterator[tuple[int, Frame]]:
    """The next batch of the segment, again and again: where it should be, or the next one that was promised."""
    while True:
        frame = frame_at(data, segment.size)
        joins = frame is not None and _fits(frame, segment) and frame.first == segment.end
        if frame is not None and joins and (not ended or frame.first + frame.rows <= promised):
            yield segment.size, frame
            continue
        if segment.end >= promised:
            return
        behind = (
            (at, frame)
            for at, frame in frames_after(data, segment.size)
            if _fits(frame, segment) and segment.end <= frame.first and frame.first + frame.rows <= promised
        )
        found = next(behind, None)
        behind.close()
        if found is None:
            return
        yield found


def _fits(frame: Frame, segment: Segment) -> bool:
    return frame.magic == BATCH and frame.shard == segment.shard and frame.rows > 0


def table_of(segment: Segment) -> Any:
    """All good rows of it in memory, as a table in one piece: what follows is slow on many small ones.

    The segment must have been scanned: Arrow believes what it reads.
    """
    data = [frame_opening(segment.shard, "", segment.first)]
    with segment.path.open("rb") as file:
        for begin, until in segment.pieces():
            file.seek(begin)
            data.append(file.read(until - begin))
    return pa.ipc.open_stream(pa.py_buffer(b"".join(data))).read_all().combine_chunks()


# --- the index beside it ---------------------------------------------------------------------------------------------


def save_index(segment: Segment, disk: Disk) -> None:
    head = INDEX.pack(INDEX_MAGIC, len(segment.firsts), segment.first, segment.end, segment.size, segment.newest, segment.shard)
    body = head + segment.firsts.tobytes() + segment.offsets.tobytes()
    disk.replace(index_path(segment.path), body + crc32(body).to_bytes(4, "little"))


def load_index(path: Path, shard: int, first: int) -> Segment | None:
    """The segment as its index describes it; None if the index is not whole or the file is not as long as it says."""
    try:
        data = index_path(path).read_bytes()
        length = path.stat().st_size
    except OSError:
        return None
    if len(data) < INDEX.size + 4 or crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
        return None
    magic, batches, its_first, end, size, newest, its_shard = INDEX.unpack_from(data)
    if (magic, its_first, its_shard, size) != (INDEX_MAGIC, first, shard, length):
        return None
    segment = Segment(path, shard, first, 0)
    column = 8 * batches
    segment.firsts.frombytes(data[INDEX.size : INDEX.size + column])
    segment.offsets.frombytes(data[INDEX.size + column : INDEX.size + 2 * column])
    segment.end, segment.size, segment.newest, segment.sealed = end, size, newest, True
    return segment


# --- which files are segments ----------------------------------------------------------------------------------------

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

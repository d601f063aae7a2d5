"""Segment files: each an Arrow IPC stream of consecutive positions, with the offset of each batch.

Invariant: `end` and `size` advance only after everything below them is written, so readers need no lock. A file without our
header and rows counts as a damaged segment only if a segment can have been there. Otherwise it is a stray file: it is reported,
never used and never changed.
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
from ropewalk.adapters.journals.arrow.records import Disk
from ropewalk.model.journal import GENERATION_BITS

INDEX = struct.Struct("<4sIQQQqI")  # magic, batches, first, end, size, newest, shard; then the two columns and a checksum
INDEX_MAGIC = b"RwI1"


Hole = tuple[int, int]
"""Positions [first, end) that were written and can no longer be read."""


class Segment:
    """One segment file and the offsets of its batches.

    Damaged bytes count as a batch, so that every position and byte belongs to one. Such a batch has the positions of a hole, or
    none if the batches around it are consecutive. `holes` is replaced, never changed in place.

    Attributes:
        newest: the latest time, in microseconds.
        sealed: its index and the state after it are on disk.
    """

    __slots__ = ("end", "first", "firsts", "holes", "newest", "offsets", "path", "sealed", "shard", "size")

    def __init__(self, path: Path, shard: int, first: int, size: int) -> None:
        self.path = path
        self.shard = shard
        self.first = first
        self.end = first
        self.size = size  # initially of the header
        self.newest = 0
        self.sealed = False
        self.holes: list[Hole] = []
        self.firsts = array("Q")
        self.offsets = array("Q")

    @property
    def rows(self) -> int:
        """The number of readable rows."""
        lost = sum(end - first for first, end in self.holes) if self.holes else 0
        return self.end - self.first - lost

    @property
    def headless(self) -> bool:
        """It has rows but no header, so Arrow libraries cannot open it."""
        return self.rows > 0 and self.offsets[0] == 0

    def add(self, length: int, rows: int, newest: int) -> None:
        self.offsets.append(self.size)
        self.firsts.append(self.end)
        self.newest = max(self.newest, newest)
        self.size += length
        self.end += rows  # last: makes the batch visible to readers

    def skip(self, end: int, until: int) -> None:
        """Mark the bytes up to `until` as damaged and the positions up to `end` as lost."""
        self.offsets.append(self.size)
        self.firsts.append(self.end)
        if end > self.end:
            self.holes = [*self.holes, (self.end, end)]
        self.size, self.end = until, end

    def drop_last(self) -> None:
        self.end = self.firsts.pop()
        self.size = self.offsets.pop()

    def find_batch(self, position: int) -> int:
        """The number of the batch with this position, which must be in the segment."""
        return bisect_right(self.firsts, position) - 1

    def limits(self, batch: int) -> tuple[int, int, int, int]:
        """(first position, end position, first byte, end byte) of a batch."""
        first, begin = self.firsts[batch], self.offsets[batch]
        if batch + 1 < len(self.firsts):
            return first, self.firsts[batch + 1], begin, self.offsets[batch + 1]
        return first, self.end, begin, self.size

    def pieces(self) -> list[tuple[int, int]]:
        """The byte ranges of its valid batches; adjacent ranges are merged."""
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
    """For scanning many files at startup and by commands. A running server reads files into memory instead, because truncating
    a mapped file would crash it."""
    with path.open("rb") as file:
        if not file.seek(0, 2):
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data, memoryview(data) as view:
            yield view


def scan(path: Path, shard: int, first: int, promised: int, ended: bool) -> tuple[Segment, list[Frame]]:
    """All complete batches with a valid checksum, and the batches of the last group.

    Args:
        promised: positions below it were acknowledged; those not found are holes. After damaged bytes, the scan continues at
            the next batch of such positions.
        ended: no other position was acknowledged. Otherwise further consecutive batches count too, and bytes after the last
            one are ignored.
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
    """The batches of the segment, in order: at the expected offset, or the next acknowledged one after damaged bytes."""
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


def read_table(segment: Segment) -> Any:
    """All valid rows as a table of one chunk: computing over many small chunks is slow.

    The segment must have been scanned, because Arrow does not verify its input.
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
    """The segment from its index; None if the index is damaged or the size of the file differs."""
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
    """The acknowledged end of each known generation. `exact`: generations in which no segment can begin after that end."""

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
    """Whether it has the header that its name promises, or a batch that can be in it."""
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
    """Whether an interrupted start began this generation before it could write the manifest."""
    return generation == max(promised.ends, default=-1) + 1 and [int(path.stem) for path in paths] == [
        generation << GENERATION_BITS
    ]


def _may_begin(path: Path, generation: int, before: Sequence[Path], promised: Promised) -> bool:
    """Whether a fully damaged segment can have begun here: at the end of the one before, or after an end that is unknown."""
    first = int(path.stem)
    if before and (reached := _reached(before[-1])) >= first:
        return reached == first
    return generation not in promised.exact or first <= promised.ends[generation]


def _reached(path: Path) -> int:
    """The end of the last valid batch of a segment; its beginning if there is none."""
    with mapped(path) as data:
        ends = (frame.first + frame.rows for _, frame in frames_after(data, 0) if frame.magic == BATCH)
        return max(ends, default=int(path.stem))

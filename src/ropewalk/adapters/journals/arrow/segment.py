"""One segment file: an Arrow IPC stream of consecutive positions, and where each of its batches lies.

The rule it keeps: `end` and `size` move only when everything below them is written, so a reader who goes by them needs no lock.
"""

import mmap
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa

from ropewalk.adapters.journals.arrow.disk import Disk
from ropewalk.adapters.journals.arrow.framing import BATCH, OPENING, Frame, frame_at

INDEX = struct.Struct("<4sIQQQqI")  # magic, batches, first, end, size, newest, shard; then the two columns and a checksum
INDEX_MAGIC = b"RwI1"


class Segment:
    """`newest` is the latest time in it in microseconds. `sealed`: its index is on disk, and so is the state after it."""

    __slots__ = ("end", "first", "firsts", "newest", "offsets", "path", "sealed", "shard", "size")

    def __init__(self, path: Path, shard: int, first: int, size: int) -> None:
        self.path = path
        self.shard = shard
        self.first = first
        self.end = first
        self.size = size  # at first that of the opening
        self.newest = 0
        self.sealed = False
        self.firsts = array("Q")
        self.offsets = array("Q")

    @property
    def rows(self) -> int:
        return self.end - self.first

    def add(self, length: int, rows: int, newest: int) -> None:
        self.offsets.append(self.size)
        self.firsts.append(self.end)
        self.newest = max(self.newest, newest)
        self.size += length
        self.end += rows  # last: from here on readers look for it

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


def segment_path(directory: Path, shard: int, first: int) -> Path:
    return directory / f"shard={shard:02}" / f"{first:020}.arrow"


def index_path(segment: Path) -> Path:
    return segment.with_suffix(".idx")


# --- reading a segment back ------------------------------------------------------------------------------------------


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    with path.open("rb") as file:
        if not file.seek(0, 2):
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data, memoryview(data) as view:
            yield view


def scan(path: Path, shard: int, first: int) -> tuple[Segment, list[Frame]]:
    """Everything that is whole from the beginning, every bit of it checked, and the batches of its last group.

    What follows is not looked at. A segment without a readable opening has neither bytes nor rows.
    """
    tail: list[Frame] = []
    with mapped(path) as data:
        opening = frame_at(data, 0)
        if opening is None or (opening.magic, opening.shard, opening.first) != (OPENING, shard, first):
            return Segment(path, shard, first, 0), tail
        segment = Segment(path, shard, first, opening.length)
        while (frame := frame_at(data, segment.size)) is not None:
            if (frame.magic, frame.shard, frame.first) != (BATCH, shard, segment.end):
                break
            segment.add(frame.length, frame.rows, frame.newest)
            tail = [*tail, frame] if tail and tail[-1].group == frame.group else [frame]
    return segment, tail


def table_of(segment: Segment) -> Any:
    """All of it in memory, as a table in one piece: what follows is slow on many small ones.

    The segment must have been scanned: Arrow believes what it reads.
    """
    with segment.path.open("rb") as file:
        data = file.read(segment.size)
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all().combine_chunks()


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

"""What is found of a shard at start, before anything is decided or changed.

The rule it keeps: what is young enough to matter is read to the last bit; the rest is taken by its index, and is checked when
somebody reads it.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from msgspec import Struct

from ropewalk.adapters.journals.arrow.framing import OPENING, Frame, frame_at
from ropewalk.adapters.journals.arrow.manifest import LIFE_BITS, LifeRecord
from ropewalk.adapters.journals.arrow.segment import Segment, load_index, mapped, scan
from ropewalk.adapters.journals.arrow.state import load_state

ALWAYS_READ = 2
"""Last segments of the life in use that are read whatever their age: the last group lies there."""


class Found(Struct):
    """A life as it is on disk.

    `read_from`: segments from this one on were read to the last bit. `spare`: bytes behind the last whole batch of the last
    segment. `rest`: segments that do not join up; `left_over`: such as should be gone already. `flaw`: why the chain ends
    early, "" if it does not.
    """

    record: LifeRecord
    segments: list[Segment] = []
    read_from: int = 0
    tail: list[Frame] = []
    spare: int = 0
    rest: list[Path] = []
    left_over: list[Path] = []
    flaw: str = ""

    @property
    def end(self) -> int:
        return self.segments[-1].end if self.segments else self.record.first


def segments_of(directory: Path, shard: int) -> dict[int, list[Path]]:
    """Paths of segments by life, each in order."""
    found: dict[int, list[Path]] = {}
    for path in sorted((directory / f"shard={shard:02}").glob("*.arrow")):
        if path.stem.isdecimal():
            found.setdefault(int(path.stem) >> LIFE_BITS, []).append(path)
    return found


class Scans:
    """What was read to the last bit, so that nothing is read twice."""

    def __init__(self) -> None:
        self._done: dict[Path, tuple[Segment, list[Frame]]] = {}

    def scan(self, path: Path, shard: int) -> tuple[Segment, list[Frame]]:
        if path not in self._done:
            self._done[path] = scan(path, shard, int(path.stem))
        return self._done[path]

    def newest(self, shards: list[dict[int, list[Path]]]) -> int:
        """The time of the newest row in the segments that are read whatever their age."""
        last = (
            (path, shard) for shard, lives in enumerate(shards) for paths in lives.values() for path in paths[-ALWAYS_READ:]
        )
        return max((self.scan(path, shard)[0].newest for path, shard in last), default=0)


def inspect(shard: int, record: LifeRecord, paths: Sequence[Path], oldest: int, scans: Scans, in_use: bool) -> Found:
    """Follow the chain of a life's segments as far as it holds."""
    left_over = [path for path in paths if int(path.stem) < record.first]
    paths = paths[len(left_over) :]
    found = Found(record, [], _read_from(shard, paths, oldest, ALWAYS_READ if in_use else 0), left_over=left_over)
    for number, path in enumerate(paths):
        first = int(path.stem)
        if first != found.end:
            found.flaw, found.rest = f"positions from {found.end} to {first} are missing", list(paths[number:])
            break
        segment = load_index(path, shard, first) if number < found.read_from else None
        if segment is None:
            segment, tail = scans.scan(path, shard)
            found.tail = tail or found.tail
        spare = path.stat().st_size - segment.size
        if segment.size:
            found.segments.append(segment)
        if spare and number + 1 < len(paths):
            found.flaw, found.rest = f"{path.name} is not whole", list(paths[number + bool(segment.size) :])
            break
        found.spare = spare
        if not segment.size:
            found.rest = [path]
    return found


def _read_from(shard: int, paths: Sequence[Path], oldest: int, always: int) -> int:
    """The first segment that must be read: all before it hold older rows only, and are summed up in the state beside it.

    Of a former life all may be so old. Then none is read: one that was damaged meanwhile is not cut, for readers find out what
    can still be read of it.
    """
    indexed = [load_index(path, shard, int(path.stem)) for path in paths]
    number = max(0, len(paths) - always)
    while number > 0:
        old = all(segment is not None and segment.newest < oldest for segment in indexed[:number])
        if old and (number == len(paths) or load_state(paths[number], shard, int(paths[number].stem)) is not None):
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

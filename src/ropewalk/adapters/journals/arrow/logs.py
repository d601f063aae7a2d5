"""The log of a shard: its generations, oldest first, each a chain of segments. Only the last segment of the last generation
grows.

Invariant: lists of generations and segments are replaced, never changed in place, because readers use them concurrently.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

from ropewalk.adapters.journals.arrow.disk import Disk
from ropewalk.adapters.journals.arrow.frames import frame_opening
from ropewalk.adapters.journals.arrow.manifest import GenerationRecord
from ropewalk.adapters.journals.arrow.segment import Hole, Segment, segment_path
from ropewalk.model.journal import GENERATION_BITS, ShardSpan

ENDED_GENERATIONS = 64
"""For how many generations without rows a shard still records where they ended."""


class Generation:
    """One generation of a shard: an unbroken run of positions in a chain of segments. `holes` are in order.

    `reached` is where it begins and ends while it has no segments: at its beginning, or where its last one ended.
    `missing_head` is a hole before its first segment, whose files are gone though retention did not remove them.
    """

    __slots__ = ("_changing", "epoch", "holes", "missing_head", "number", "reached", "segments")

    def __init__(
        self, epoch: str, number: int, segments: list[Segment], reached: int | None = None, missing_head: Sequence[Hole] = ()
    ) -> None:
        self.epoch = epoch
        self.number = number
        self.segments = segments
        self.reached = number << GENERATION_BITS if reached is None else reached
        self.missing_head = missing_head
        self.holes = self._holes()
        self._changing = Lock()

    @property
    def first(self) -> int:
        for first, _ in self.missing_head:
            return first
        segments = self.segments  # which may be replaced between two looks
        return segments[0].first if segments else self.reached

    @property
    def end(self) -> int:
        segments = self.segments
        return segments[-1].end if segments else self.reached

    def change(self, change: Callable[[list[Segment]], list[Segment]]) -> None:
        """Replace the list of segments. The writer adds to it while upkeep takes away from it, and neither may be forgotten."""
        with self._changing:
            self.reached = self.end
            self.segments = change(self.segments)
            self.holes = self._holes()

    def let_go(self, gone: Callable[[Segment], bool]) -> bool:
        """Remove these segments, the first ones, and forget what was lost before them. False if it has none of them."""
        if not any(map(gone, self.segments)):
            return False
        self.missing_head = ()
        self.change(lambda segments: [segment for segment in segments if not gone(segment)])
        return True

    def forget_holes(self) -> None:
        """For a generation without segments: from now on only its end is recorded."""
        self.missing_head = ()
        self.holes = []

    def lose(self, segment: Segment, hole: Hole) -> bool:
        """These positions of the segment turned out bad. False if that is known already."""
        first, end = hole
        with self._changing:
            if hole in segment.holes:
                return False
            others = [known for known in segment.holes if known[0] < first or known[1] > end]
            segment.holes = sorted([*others, hole])
            self.holes = self._holes()
            return True

    def _holes(self) -> list[Hole]:
        return [*self.missing_head, *(hole for segment in self.segments for hole in segment.holes)]

    def record(self) -> GenerationRecord:
        return GenerationRecord(self.epoch, self.number, self.first, self.end, self.holes)

    def spans(self, shard: int) -> list[ShardSpan]:
        """What lies around the holes. The first and the last one may be empty: then the hole is at the beginning or the end."""
        spans: list[ShardSpan] = []
        first = self.first
        for hole, hole_end in self.holes:
            if hole > first or (hole == first and not spans):
                spans.append(ShardSpan(shard, self.epoch, first, hole))
            first = max(first, hole_end)
        return [*spans, ShardSpan(shard, self.epoch, first, self.end)]


def remembered(generations: list[Generation]) -> list[Generation]:
    """Without former generations in which nothing ever happened, and without those that ended longest ago of too many."""
    former = [generation for generation in generations[:-1] if generation.end > generation.number << GENERATION_BITS]
    surplus = max(0, sum(1 for generation in former if not generation.segments) - ENDED_GENERATIONS)
    gone = [generation for generation in former if not generation.segments][:surplus]
    return [*(generation for generation in former if generation not in gone), generations[-1]]


class ShardLog:
    """`fd` is open on the segment that grows."""

    __slots__ = ("began", "fd", "generations", "shard")

    def __init__(self, shard: int, generations: list[Generation]) -> None:
        self.shard = shard
        self.generations = generations
        self.fd = -1
        self.began = 0.0  # when the segment that grows got its first row of this run

    @property
    def current(self) -> Generation:
        return self.generations[-1]

    @property
    def active(self) -> Segment:
        return self.generations[-1].segments[-1]

    def spans(self) -> list[ShardSpan]:
        return [span for generation in self.generations for span in generation.spans(self.shard)]

    def grow(self, directory: Path, disk: Disk, sync: bool) -> None:
        """Begin a new segment at the end of the current generation. Raises OSError, and then nothing has changed."""
        generation = self.current
        path = segment_path(directory, self.shard, generation.end)
        opening = frame_opening(self.shard, generation.epoch, generation.end)
        fd = disk.open(path)
        try:
            disk.truncate(fd, 0)
            disk.write(fd, opening, 0)
            if sync:
                disk.sync(fd)
                disk.sync_file(path.parent)
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        self.close()
        self.fd = fd
        fresh = Segment(path, self.shard, generation.end, len(opening))
        generation.change(lambda segments: [*segments, fresh])

    def reopen(self, disk: Disk) -> None:
        """Go on where the last segment ends; whatever lies behind goes."""
        self.active.sealed = False
        self.fd = disk.open(self.active.path)
        disk.truncate(self.fd, self.active.size)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

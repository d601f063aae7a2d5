"""A shard's log: its lives, oldest first, each a chain of segments. The last life's last segment is the one that grows.

The rule it keeps: lists of lives and segments are replaced, never changed in place, because readers go through them meanwhile.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

from ropewalk.adapters.journals.arrow.disk import Disk
from ropewalk.adapters.journals.arrow.framing import frame_opening
from ropewalk.adapters.journals.arrow.manifest import LIFE_BITS, LifeRecord
from ropewalk.adapters.journals.arrow.segment import Hole, Segment, segment_path
from ropewalk.model.journal import ShardSpan

ENDED_LIVES = 64
"""Of how many lives whose rows are gone a shard still tells where they ended."""


class Life:
    """One name of a shard's positions: an unbroken chain of segments. `holes` are in order.

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
        self.reached = number << LIFE_BITS if reached is None else reached
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
        """Of a life without segments: from now on only where it ended is told."""
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

    def record(self) -> LifeRecord:
        return LifeRecord(self.epoch, self.number, self.first, self.end, self.holes)

    def spans(self, shard: int) -> list[ShardSpan]:
        """What lies around the holes. The first and the last one may be empty: then the hole is at the beginning or the end."""
        spans: list[ShardSpan] = []
        first = self.first
        for hole, hole_end in self.holes:
            if hole > first or (hole == first and not spans):
                spans.append(ShardSpan(shard, self.epoch, first, hole))
            first = max(first, hole_end)
        return [*spans, ShardSpan(shard, self.epoch, first, self.end)]


def remembered(lives: list[Life]) -> list[Life]:
    """Without former lives in which nothing ever happened, and without those that ended longest ago of too many."""
    former = [life for life in lives[:-1] if life.end > life.number << LIFE_BITS]
    surplus = max(0, sum(1 for life in former if not life.segments) - ENDED_LIVES)
    gone = [life for life in former if not life.segments][:surplus]
    return [*(life for life in former if life not in gone), lives[-1]]


class ShardLog:
    """`fd` is open on the segment that grows."""

    __slots__ = ("began", "fd", "lives", "shard")

    def __init__(self, shard: int, lives: list[Life]) -> None:
        self.shard = shard
        self.lives = lives
        self.fd = -1
        self.began = 0.0  # when the segment that grows got its first row of this run

    @property
    def current(self) -> Life:
        return self.lives[-1]

    @property
    def active(self) -> Segment:
        return self.lives[-1].segments[-1]

    def spans(self) -> list[ShardSpan]:
        return [span for life in self.lives for span in life.spans(self.shard)]

    def grow(self, directory: Path, disk: Disk, sync: bool) -> None:
        """Begin a new segment at the end of the current life. Raises OSError, and then nothing has changed."""
        life = self.current
        path = segment_path(directory, self.shard, life.end)
        opening = frame_opening(self.shard, life.epoch, life.end)
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
        fresh = Segment(path, self.shard, life.end, len(opening))
        life.change(lambda segments: [*segments, fresh])

    def reopen(self, disk: Disk) -> None:
        """Go on where the last segment ends; whatever lies behind goes."""
        self.active.sealed = False
        self.fd = disk.open(self.active.path)
        disk.truncate(self.fd, self.active.size)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

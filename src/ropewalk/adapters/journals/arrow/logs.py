"""The log of a shard: its generations, oldest first, each a chain of segments. Only the last segment of the last generation
grows. Readers get raw batches from the files, verified but not decoded.

Invariant: lists of generations and segments are replaced, never changed in place, because readers use them concurrently.
Readers and the writer never wait for each other, and a reader never gets bytes with a checksum mismatch.
"""

import asyncio
import logging
import os
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from msgspec import Struct

from ropewalk.adapters.journals.arrow.batches import END_OF_STREAM, frame_at, frame_opening
from ropewalk.adapters.journals.arrow.records import Disk, GenerationRecord
from ropewalk.adapters.journals.arrow.segment import Hole, Segment, segment_path
from ropewalk.model.errors import BadRequest
from ropewalk.model.journal import GENERATION_BITS, ShardSpan

MAX_ENDED_GENERATIONS = 64
"""Former generations without rows whose ends a shard still records."""


class Generation:
    """One generation of a shard: an unbroken run of positions in a chain of segments.

    Attributes:
        reached: its beginning and end while it has no segments.
        missing_head: a hole before the first segment: its files are missing, though retention did not remove them.
        holes: lost positions, in order.
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
        segments = self.segments  # may be replaced concurrently
        return segments[0].first if segments else self.reached

    @property
    def end(self) -> int:
        segments = self.segments
        return segments[-1].end if segments else self.reached

    def change(self, change: Callable[[list[Segment]], list[Segment]]) -> None:
        """Replace the list of segments. The lock keeps the changes of both the writer and the upkeep thread."""
        with self._changing:
            self.reached = self.end
            self.segments = change(self.segments)
            self.holes = self._holes()

    def let_go(self, gone: Callable[[Segment], bool]) -> bool:
        """Remove these leading segments and the holes before them. False if it has none of them."""
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
        """Record a hole. False if it is known already."""
        first, end = hole
        with self._changing:
            if hole in segment.holes:
                return False
            others = [known for known in segment.holes if known[0] < first or known[1] > end]
            segment.holes = sorted([*others, hole])
            self.holes = self._holes()
            return True

    def regain(self, segment: Segment, hole: Hole) -> None:
        """Remove a hole: its positions can be read again."""
        with self._changing:
            segment.holes = [known for known in segment.holes if known != hole]
            self.holes = self._holes()

    def _holes(self) -> list[Hole]:
        return [*self.missing_head, *(hole for segment in self.segments for hole in segment.holes)]

    def record(self) -> GenerationRecord:
        return GenerationRecord(self.epoch, self.number, self.first, self.end, self.holes)

    def spans(self, shard: int) -> list[ShardSpan]:
        """The ranges between the holes. The first or last is empty if a hole is at the beginning or the end."""
        spans: list[ShardSpan] = []
        first = self.first
        for hole, hole_end in self.holes:
            if hole > first or (hole == first and not spans):
                spans.append(ShardSpan(shard, self.epoch, first, hole))
            first = max(first, hole_end)
        return [*spans, ShardSpan(shard, self.epoch, first, self.end)]


def remembered(generations: list[Generation]) -> list[Generation]:
    """Drop former generations that never had rows, and the oldest without rows beyond MAX_ENDED_GENERATIONS."""
    former = [generation for generation in generations[:-1] if generation.end > generation.number << GENERATION_BITS]
    surplus = max(0, sum(1 for generation in former if not generation.segments) - MAX_ENDED_GENERATIONS)
    gone = [generation for generation in former if not generation.segments][:surplus]
    return [*(generation for generation in former if generation not in gone), generations[-1]]


class ShardLog:
    """`fd`: the open file of the active segment."""

    __slots__ = ("began", "fd", "generations", "shard")

    def __init__(self, shard: int, generations: list[Generation]) -> None:
        self.shard = shard
        self.generations = generations
        self.fd = -1
        self.began = 0.0  # when the active segment got the first row of this run

    @property
    def current(self) -> Generation:
        return self.generations[-1]

    @property
    def active(self) -> Segment:
        return self.generations[-1].segments[-1]

    def spans(self) -> list[ShardSpan]:
        return [span for generation in self.generations for span in generation.spans(self.shard)]

    def grow(self, directory: Path, disk: Disk, sync: bool) -> None:
        """Begin a new segment at the end of the current generation. Raises OSError without a change."""
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
        """Continue the last segment, and truncate bytes after its end."""
        self.active.sealed = False
        self.fd = disk.open(self.active.path)
        disk.truncate(self.fd, self.active.size)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


# --- reading ---------------------------------------------------------------------------------------------------------

logger = logging.getLogger("ropewalk.journal")

CHUNK = 1024 * 1024
"""Bytes read at a time, unless one batch is larger."""

SegmentStamp = tuple[int, ...]
"""Changes when a file is written or replaced."""


class Chunk(Struct, frozen=True, gc=False):
    """Consecutive batches of one segment: positions [first, end), bytes [begin, until)."""

    segment: Segment
    first: int
    end: int
    begin: int
    until: int


class Reader:
    """`damaged_batches` counts batches that reads found damaged and do not serve; damage found by recovery is not counted."""

    def __init__(self, logs: list[ShardLog]) -> None:
        self._logs = logs
        self._pool = ThreadPoolExecutor(2, "journal-read")
        self._rechecked: dict[Path, SegmentStamp | None] = {}
        self.damaged_batches = 0

    def spans(self) -> list[ShardSpan]:
        return [span for shard in self._logs for span in shard.spans()]

    def read(self, shard: int, first: int, end: int, max_bytes: int) -> AsyncIterator[bytes]:
        """Raises BadRequest for missing positions at once, so that an endpoint can still send an error status."""
        if not 0 <= shard < len(self._logs):
            raise BadRequest(f"unknown shard: {shard}")
        for generation in self._logs[shard].generations:
            for span in generation.spans(shard):
                if span.first <= first <= end <= span.end:
                    return self._stream(shard, generation, first, end, max_bytes)
        raise BadRequest(f"positions from {first} to below {end} are not in shard {shard} of the journal, or no longer")

    def recheck(self) -> None:
        """Read damaged positions again whose file has changed: it may have been restored."""
        stamps: dict[Path, SegmentStamp | None] = {}
        damaged = [
            (generation, segment)
            for log in self._logs
            for generation in log.generations
            for segment in generation.segments
            if segment.holes
        ]
        for generation, segment in damaged:
            stamps[segment.path] = stamp = _stamp(segment.path)
            if self._rechecked.get(segment.path, ()) == stamp:
                continue
            for first, end in (hole for hole in segment.holes if _is_good(segment, hole)):
                generation.regain(segment, (first, end))
                logger.warning("shard %d can be read again: positions %d-%d", segment.shard, first, end - 1)
        self._rechecked = stamps

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def _stream(self, shard: int, generation: Generation, first: int, end: int, max_bytes: int) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        sent = 0
        yield frame_opening(shard, generation.epoch, first)
        while first < end:
            chunk = _plan(generation, first, end, max_bytes - sent, at_least_one=not sent)
            if chunk is None:
                break
            data, reached = await loop.run_in_executor(self._pool, _load, chunk)
            if data:
                yield data
            sent, first = sent + len(data), reached
            if reached < chunk.end and chunk.segment in generation.segments:  # else it was rewritten meanwhile: retry
                self._damaged(generation, chunk.segment, reached)
                break
        yield END_OF_STREAM

    def _damaged(self, generation: Generation, segment: Segment, position: int) -> None:
        first, end, *_ = segment.limits(segment.find_batch(position))
        if not segment.path.exists():
            first, end = segment.first, segment.end
        if generation.lose(segment, (first, end)):
            self.damaged_batches += 1
            logger.error("checksum mismatch in shard %d: positions %d-%d", segment.shard, first, end - 1)


def _plan(generation: Generation, first: int, end: int, max_bytes: int, at_least_one: bool) -> Chunk | None:
    """The next consecutive batches that fit. None if none does, or if the position was removed."""
    segments = generation.segments
    number = bisect_right(segments, first, key=lambda segment: segment.first) - 1
    if number < 0:
        return None
    segment = segments[number]
    batch = segment.find_batch(first)
    begins, reached, begin, until = segment.limits(batch)
    if until - begin > max_bytes and not at_least_one:
        return None
    allowed = begin + min(max_bytes, CHUNK)
    while reached < min(end, segment.end):
        next_begins, next_reached, _, next_until = segment.limits(batch := batch + 1)
        if next_until > allowed or next_begins == next_reached:  # or bad bytes between two batches
            break
        reached, until = next_reached, next_until
    return Chunk(segment, begins, reached, begin, until)


def _load(chunk: Chunk) -> tuple[bytes, int]:
    """The leading valid bytes, and the position after them."""
    try:
        data = _bytes(chunk.segment, chunk.begin, chunk.until)
    except OSError:
        return b"", chunk.first
    view, at, reached = memoryview(data), 0, chunk.first
    while reached < chunk.end:
        frame = frame_at(view, at)
        if frame is None or frame.first != reached or frame.shard != chunk.segment.shard:
            return data[:at], reached
        at, reached = at + frame.length, reached + frame.rows
    return data[:at], reached  # may exceed the requested range if the writer appended meanwhile


def _is_good(segment: Segment, hole: Hole) -> bool:
    """Whether all of its batches can be read."""
    position, hole_end = hole
    while position < hole_end:
        first, end, begin, until = segment.limits(segment.find_batch(position))
        if first != position or _load(Chunk(segment, first, end, begin, until))[1] < end:
            return False
        position = end
    return True


def _stamp(path: Path) -> SegmentStamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _bytes(segment: Segment, begin: int, until: int) -> bytes:
    fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, until - begin, begin)
    finally:
        os.close(fd)

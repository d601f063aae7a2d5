"""Serves journal rows to readers: raw batches from the files, each checked, none decoded.

Invariant: a reader never waits for the writer nor blocks it, and never gets a byte that is not as it was written.
"""

import asyncio
import logging
import os
from bisect import bisect_right
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct

from ropewalk.adapters.journals.arrow.frames import END_OF_STREAM, frame_at, frame_opening
from ropewalk.adapters.journals.arrow.logs import Generation, ShardLog
from ropewalk.adapters.journals.arrow.segment import Segment
from ropewalk.model.errors import BadRequest
from ropewalk.model.journal import ShardSpan

log = logging.getLogger("ropewalk.journal")

CHUNK = 1024 * 1024
"""Bytes read at a time, unless one batch is larger."""


class Chunk(Struct, frozen=True, gc=False):
    """Neighbouring batches of one segment: positions [first, end), bytes [begin, until)."""

    segment: Segment
    first: int
    end: int
    begin: int
    until: int


class Reader:
    """`damaged_batches` counts what turned out bad when it was read, and is not served."""

    def __init__(self, logs: list[ShardLog]) -> None:
        self._logs = logs
        self._pool = ThreadPoolExecutor(2, "journal-read")
        self.damaged_batches = 0

    def spans(self) -> list[ShardSpan]:
        return [span for shard in self._logs for span in shard.spans()]

    def read(self, shard: int, first: int, end: int, max_bytes: int) -> AsyncIterator[bytes]:
        """Raises at once for what is not there; so an endpoint can answer before it has sent anything."""
        if not 0 <= shard < len(self._logs):
            raise BadRequest(f"there is no shard {shard}")
        for generation in self._logs[shard].generations:
            for span in generation.spans(shard):
                if span.first <= first <= end <= span.end:
                    return self._stream(shard, generation, first, end, max_bytes)
        raise BadRequest(f"positions from {first} to {end} are not in shard {shard} of the journal (any more)")

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
            if reached < chunk.end and chunk.segment in generation.segments:  # else it was rewritten meanwhile: look again
                self._damaged(generation, chunk.segment, reached)
                break
        yield END_OF_STREAM

    def _damaged(self, generation: Generation, segment: Segment, position: int) -> None:
        first, end, *_ = segment.limits(segment.batch_of(position))
        if not segment.path.exists():
            first, end = segment.first, segment.end
        if generation.lose(segment, (first, end)):
            self.damaged_batches += 1
            log.error("positions from %d to %d of shard %d are not as they were written", first, end, segment.shard)


def _plan(generation: Generation, first: int, end: int, max_bytes: int, at_least_one: bool) -> Chunk | None:
    """The next neighbouring batches that fit. None if none does, or if the position is gone."""
    segments = generation.segments
    number = bisect_right(segments, first, key=lambda segment: segment.first) - 1
    if number < 0:
        return None
    segment = segments[number]
    batch = segment.batch_of(first)
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
    """The bytes as far as they are good, and the position up to which they reach."""
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
    return data[:at], reached  # the writer may have been quicker than the plan: then more was read than is asked for


def _bytes(segment: Segment, begin: int, until: int) -> bytes:
    fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, until - begin, begin)
    finally:
        os.close(fd)

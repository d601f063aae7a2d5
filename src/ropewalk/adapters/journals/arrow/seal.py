"""Seals a segment once another follows it: merges small batches, and saves index and state.

Invariant: positions and rows stay exactly as they were. A segment that does not read back unchanged is left alone.
"""

from pathlib import Path
from typing import Any

from ropewalk.adapters.journals.arrow.disk import Disk
from ropewalk.adapters.journals.arrow.frames import frame_batch, frame_opening
from ropewalk.adapters.journals.arrow.group_commit import BATCH_ROWS
from ropewalk.adapters.journals.arrow.logs import Generation
from ropewalk.adapters.journals.arrow.segment import Segment, save_index, scan, table_of
from ropewalk.adapters.journals.arrow.state import EMPTY, load_state, merge, save_state, younger
from ropewalk.protocol.journal_schema import INT64

SMALL_ROWS = 512
MANY = 64
"""A segment of more batches than this, with fewer rows each on average, is worth rewriting."""


def seal(generation: Generation, segment: Segment, in_use: bool, forget_before: float, disk: Disk) -> Segment:
    """Returns the segment as it is now, which may be another object. Raises OSError, and then it may be tried again.

    A segment with holes is not sealed while its generation is `in_use`: the state after it cannot be computed. Of streams that
    nobody published to since `forget_before` the state says nothing any more.
    """
    found = scan(segment.path, segment.shard, segment.first, segment.end, ended=True)[0]
    if found.holes:
        _replace(generation, segment, found)
        return found if in_use else _indexed(found, disk)
    table = table_of(segment)
    if in_use:
        _save_next_state(generation, segment, table, forget_before, disk)
    if len(segment.firsts) > MANY and segment.rows < SMALL_ROWS * len(segment.firsts):
        fresh = _rewritten(generation, segment, table, disk)
        _replace(generation, segment, fresh)
        return _indexed(fresh, disk)
    disk.sync_file(segment.path)
    return _indexed(segment, disk)


def _indexed(segment: Segment, disk: Disk) -> Segment:
    save_index(segment, disk)
    segment.sealed = True
    return segment


def _replace(generation: Generation, segment: Segment, by: Segment) -> None:
    generation.change(lambda segments: [by if each is segment else each for each in segments])


def _save_next_state(generation: Generation, segment: Segment, table: Any, forget_before: float, disk: Disk) -> None:
    follower = next((each for each in generation.segments if each.first == segment.end), None)
    if follower is None:
        return
    before = load_state(segment.path, segment.shard, segment.first)
    state = younger(merge(EMPTY if before is None else before, [table]), forget_before)
    save_state(follower.path, follower.shard, follower.first, state, disk)


def _rewritten(generation: Generation, segment: Segment, table: Any, disk: Disk) -> Segment:
    opening = frame_opening(segment.shard, generation.epoch, segment.first)
    fresh = Segment(Path(segment.path), segment.shard, segment.first, len(opening))
    pieces = [opening]
    for batch in table.to_batches(max_chunksize=BATCH_ROWS):
        newest = max(batch.column("timestamp").cast(INT64).to_pylist())
        pieces.append(frame_batch(batch, segment.shard, fresh.end, newest))
        fresh.add(len(pieces[-1]), batch.num_rows, newest)
    disk.replace(segment.path, b"".join(pieces))
    return fresh

"""Background maintenance of a running journal: seals full segments and removes those that retention allows.

Invariant: one thread does all of it, and neither writers nor readers wait for it. Sealing leaves positions and rows exactly as
they were; a segment that does not read back unchanged is left alone. A segment is removed only when the state of the next one
includes it, so that no stream is forgotten.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from ropewalk.adapters.journals.arrow.batches import MICROSECONDS, frame_batch, frame_opening
from ropewalk.adapters.journals.arrow.consumers import Consumers
from ropewalk.adapters.journals.arrow.disk import Disk
from ropewalk.adapters.journals.arrow.logs import Generation, ShardLog, remembered
from ropewalk.adapters.journals.arrow.segment import Hole, Segment, remove, save_index, scan, table_of
from ropewalk.adapters.journals.arrow.state import EMPTY, load_state, merge, save_state, younger
from ropewalk.adapters.journals.arrow.writer import BATCH_ROWS
from ropewalk.ports import Clock
from ropewalk.protocol.journal_schema import INT64

# --- sealing: small batches are merged, index and state are saved ----------------------------------------------------

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


# --- retention -------------------------------------------------------------------------------------------------------


class Retention(Struct, frozen=True):
    """How long and how many rows stay; 0 is without limit.

    `for_archive`: nothing goes that the archive does not have, but for the hard limit. The same holds for what consumers need.
    """

    seconds: float
    bytes: int
    hard_limit_bytes: int
    for_archive: bool


class Going(Struct, frozen=True):
    """A segment that goes; `lost` if the archive or a consumer was to have it and has not."""

    log: ShardLog
    generation: Generation
    segment: Segment
    lost: bool


def going(
    logs: list[ShardLog], archived: dict[int, int], needed: dict[int, int], retention: Retention, now: float
) -> list[Going]:
    """The oldest first. What grows never goes. `needed`: from which position on a consumer has yet to read, by shard."""
    total = sum(segment.size for log in logs for generation in log.generations for segment in generation.segments)
    answer: list[Going] = []
    for log, generation, segment in _removable(logs):
        archiving = retention.for_archive and segment.end > archived.get(log.shard, 0)
        wanted = archiving or segment.end > needed.get(log.shard, segment.end)
        old = 0 < retention.seconds <= now - segment.newest / MICROSECONDS
        large = 0 < retention.bytes < total
        beyond = 0 < retention.hard_limit_bytes < total
        if beyond or (not wanted and (old or large)):
            answer.append(Going(log, generation, segment, lost=wanted))
            total -= segment.size
    return _from_the_beginning(answer)


def _removable(logs: list[ShardLog]) -> list[tuple[ShardLog, Generation, Segment]]:
    found = []
    for log in logs:
        for generation in log.generations:
            inner = generation.segments[:-1] if generation is log.current else generation.segments
            for segment in inner:
                if not segment.sealed:
                    break
                found.append((log, generation, segment))
    return sorted(found, key=lambda each: (each[2].newest, each[2].first))


def _from_the_beginning(wanted: list[Going]) -> list[Going]:
    """A generation loses segments from its beginning only: what would leave a hole stays."""
    chosen = {id(each.segment) for each in wanted}
    return [each for each in wanted if _all_before(each, chosen)]


def _all_before(going: Going, chosen: set[int]) -> bool:
    before = [segment for segment in going.generation.segments if segment.first < going.segment.first]
    return all(id(segment) in chosen for segment in before)


# --- the thread ------------------------------------------------------------------------------------------------------

logger = logging.getLogger("ropewalk.journal")


class Upkeep:
    """`save` records which segments there are. `lost_rows` went although somebody was to have them and had not."""

    def __init__(
        self,
        logs: list[ShardLog],
        archived: dict[int, int],
        consumers: Consumers,
        retention: Retention,
        tips_seconds: float,
        save: Callable[[], None],
        disk: Disk,
        clock: Clock,
    ) -> None:
        self._logs = logs
        self._archived = archived
        self._consumers = consumers
        self._retention = retention
        self._tips_seconds = tips_seconds
        self._save = save
        self._disk = disk
        self._clock = clock
        self.thread = ThreadPoolExecutor(1, "journal-upkeep")
        self._bad: set[Path] = set()
        self._recorded = self._holes()
        self.lost_rows = 0

    def rolled(self, shards: list[ShardLog]) -> None:
        for shard in shards:
            with suppress(RuntimeError):  # stopping: it is sealed after the next start
                self.thread.submit(self._seal_all, shard)

    def sweep(self) -> None:
        for shard in self._logs:
            self._seal_all(shard)
        holes = self._holes()
        if holes != self._recorded and self._saved():
            self._recorded = holes
        leaving = going(
            self._logs, self._archived, self._consumers.find_needed_positions(len(self._logs)), self._retention, self._clock()
        )
        if leaving:
            self._let_go(leaving)

    def _holes(self) -> list[Hole]:
        return [hole for shard in self._logs for generation in shard.generations for hole in generation.holes]

    def _seal_all(self, shard: ShardLog) -> None:
        for generation in shard.generations:
            in_use = generation is shard.current
            for segment in generation.segments[: -1 if in_use else None]:
                if not segment.sealed and segment.path not in self._bad:
                    self._seal(generation, segment, in_use)

    def _seal(self, generation: Generation, segment: Segment, in_use: bool) -> None:
        try:
            sealed = seal(generation, segment, in_use, self._clock() - self._tips_seconds, self._disk)
        except OSError as error:  # it is tried again at the next sweep
            logger.warning("segment %s cannot be sealed yet: %s", segment.path.name, error.strerror or error)
            return
        for first, end in (hole for hole in sealed.holes if hole not in segment.holes):
            logger.error("positions %d to %d in %s are not as they were written", first, end - 1, segment.path)
        if not sealed.sealed:
            self._bad.add(segment.path)  # it stays as it is until the next start

    def _let_go(self, leaving: list[Going]) -> None:
        """From memory, then from the record, then from the disk: a crash between leaves files that the next start removes."""
        gone = {id(each.segment) for each in leaving}
        for shard in {each.log.shard: each.log for each in leaving}.values():
            for number, generation in enumerate(shard.generations):
                if generation.let_go(lambda segment: id(segment) in gone):
                    for older in (each for each in shard.generations[:number] if not each.segments):
                        older.forget_holes()
            shard.generations = remembered(shard.generations)
        lost = sum(each.segment.rows for each in leaving if each.lost)
        if lost:
            self.lost_rows += lost
            logger.error("the journal reached its hard limit: %d rows went that the archive or a consumer does not have", lost)
        saved = self._saved()
        for each in leaving:
            remove(each.segment.path)
        if not saved:  # the disk was full; now there is room
            self._save()

    def _saved(self) -> bool:
        try:
            self._save()
        except OSError:
            return False
        return True

"""Background maintenance of a running journal: seals full segments and removes those that retention allows.

Invariant: one thread does all of it, and neither writers nor readers wait for it. Sealing changes no position and no row; a
segment that does not read back unchanged is left alone. A segment is removed only when the state of the next one includes it,
so that no stream is lost.
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
from ropewalk.adapters.journals.arrow.logs import Generation, ShardLog, remembered
from ropewalk.adapters.journals.arrow.records import Disk
from ropewalk.adapters.journals.arrow.segment import Hole, Segment, read_table, remove, save_index, scan
from ropewalk.adapters.journals.arrow.state import EMPTY, load_state, merge, save_state, younger
from ropewalk.adapters.journals.arrow.writer import BATCH_ROWS
from ropewalk.ports import Clock
from ropewalk.protocol.journal_schema import INT64

# --- sealing: small batches are merged, index and state are saved ----------------------------------------------------

SMALL_ROWS = 512
MANY = 64
"""A segment of more batches than this, with fewer rows each on average, is worth rewriting."""


def seal(generation: Generation, segment: Segment, in_use: bool, forget_before: float, disk: Disk) -> Segment:
    """Returns the sealed segment, which may be another object. Raises OSError; then it can be retried.

    A segment with holes is not sealed while its generation is `in_use`: the state after it cannot be computed. The state drops
    streams without a publication since `forget_before`.
    """
    found = scan(segment.path, segment.shard, segment.first, segment.end, ended=True)[0]
    if found.holes:
        _replace(generation, segment, found)
        return found if in_use else _indexed(found, disk)
    table = read_table(segment)
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
    """How long and how many rows are kept; 0 is unlimited.

    `for_archive`: rows that are not archived are removed only at the hard limit, as are rows that a consumer needs.
    """

    seconds: float
    bytes: int
    hard_limit_bytes: int
    for_archive: bool
    tips_seconds: float
    clock: Clock


class Going(Struct, frozen=True):
    """A segment to remove; `lost` if the archive or a consumer has not read it."""

    log: ShardLog
    generation: Generation
    segment: Segment
    lost: bool


def going(
    logs: list[ShardLog], archived: dict[int, int], needed: dict[int, int], retention: Retention, now: float
) -> list[Going]:
    """The segments to remove, oldest first, never the active ones. `needed`: by shard, the first position a consumer needs."""
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
    """Only leading segments of a generation are removed: removing others would leave a hole."""
    chosen = {id(each.segment) for each in wanted}
    return [each for each in wanted if _all_before(each, chosen)]


def _all_before(going: Going, chosen: set[int]) -> bool:
    before = [segment for segment in going.generation.segments if segment.first < going.segment.first]
    return all(id(segment) in chosen for segment in before)


# --- the thread ------------------------------------------------------------------------------------------------------

logger = logging.getLogger("ropewalk.journal")


class Upkeep:
    """Seals and removes segments of a running journal.

    Attributes:
        lost_rows: rows removed at the hard limit before the archive or a consumer had read them.

    Args:
        archived: by shard, the end of the archived positions.
        save: writes the manifest.
    """

    def __init__(
        self,
        logs: list[ShardLog],
        archived: dict[int, int],
        consumers: Consumers,
        retention: Retention,
        save: Callable[[], None],
        disk: Disk,
    ) -> None:
        self._logs = logs
        self._archived = archived
        self._consumers = consumers
        self._retention = retention
        self._save = save
        self._disk = disk
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
            self._logs,
            self._archived,
            self._consumers.find_needed_positions(len(self._logs)),
            self._retention,
            self._retention.clock(),
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
            forget_before = self._retention.clock() - self._retention.tips_seconds
            sealed = seal(generation, segment, in_use, forget_before, self._disk)
        except OSError as error:  # retried at the next sweep
            logger.warning("segment %s cannot be sealed yet: %s", segment.path.name, error.strerror or error)
            return
        for first, end in (hole for hole in sealed.holes if hole not in segment.holes):
            logger.error("checksum mismatch in %s: positions %d-%d", segment.path, first, end - 1)
        if not sealed.sealed:
            self._bad.add(segment.path)  # not retried until the next start

    def _let_go(self, leaving: list[Going]) -> None:
        """Remove them from memory, then from the manifest, then from disk. After a crash the next start removes left files."""
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
            logger.error(
                "the journal reached its hard limit: removed %d rows that the archive or a consumer has not read", lost
            )
        saved = self._saved()
        for each in leaving:
            remove(each.segment.path)
        if not saved:  # the disk was full; the removal freed space
            self._save()

    def _saved(self) -> bool:
        try:
            self._save()
        except OSError:
            return False
        return True

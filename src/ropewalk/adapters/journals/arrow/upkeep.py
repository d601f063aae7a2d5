"""Background maintenance of a running journal: seals full segments and removes those that retention allows.

Invariant: one thread does all of it, and neither writers nor readers wait for it.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from ropewalk.adapters.journals.arrow.consumers import Consumers
from ropewalk.adapters.journals.arrow.disk import Disk
from ropewalk.adapters.journals.arrow.logs import Generation, ShardLog, remembered
from ropewalk.adapters.journals.arrow.retention import Going, Retention, going
from ropewalk.adapters.journals.arrow.seal import seal
from ropewalk.adapters.journals.arrow.segment import Hole, Segment
from ropewalk.adapters.journals.arrow.truncation import remove
from ropewalk.ports import Clock

log = logging.getLogger("ropewalk.journal")


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
            self._logs, self._archived, self._consumers.needed_from(len(self._logs)), self._retention, self._clock()
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
            log.warning("segment %s cannot be sealed yet: %s", segment.path.name, error.strerror or error)
            return
        for first, end in (hole for hole in sealed.holes if hole not in segment.holes):
            log.error("positions from %d to %d in %s are not as they were written", first, end, segment.path)
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
            log.error("the journal reached its hard limit: %d rows went that the archive or a consumer does not have", lost)
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

"""The journal in Arrow IPC segments by shard: recovery, group commit, reads, and retention.

Invariant: every acknowledged row is recovered, or its loss is reported.

    journal/journal.json, journal.copy.json   the manifest: shards, generations, holes, clean shutdown or not
    journal/commits-N.log                     the commit log: how far each group brought each shard
    journal/shard=NN/<first position>.arrow   a segment: a plain Arrow IPC stream with a checksum in each message
    journal/shard=NN/<first position>.idx     where its batches are, once another segment follows it
    journal/shard=NN/<first position>.state   the state at its beginning: tips, producers, rows of open sessions
    journal/shard=NN/*.damaged                files that a repair replaced
    journal/consumers/*.json                  the marks of named readers
"""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ropewalk.adapters.journals.arrow.consumers import Consumers
from ropewalk.adapters.journals.arrow.logs import Reader, ShardLog
from ropewalk.adapters.journals.arrow.records import CommitLog, Disk, Manifest, lock, save
from ropewalk.adapters.journals.arrow.recovery import Site, recover
from ropewalk.adapters.journals.arrow.upkeep import Retention, Upkeep
from ropewalk.adapters.journals.arrow.writer import GroupCommit, Rolling, Writer
from ropewalk.model.errors import BadRequest, Unavailable, UserMistake
from ropewalk.model.journal import DURABILITIES, Consumer, Marks, Recovered, Row, ShardSpan
from ropewalk.model.limits import JournalLimits
from ropewalk.ports import Clock

PROBE = b"\0" * 65536


def random_epoch() -> str:
    """Eight URL-safe characters: 48 random bits."""
    return secrets.token_urlsafe(6)


class ArrowJournal:
    """Implements `ports.Journal`, `ports.JournalReader` and `ports.ConsumerStore`.

    Call `open`, use the recovered state, then `start`, …, `stop`.

    Args:
        durability: when a write is acknowledged: `memory` at once, `journal` when it is written, `fsync` when it is on disk.
        new_epoch: names the epochs of generations.
        disk: the file operations.
    """

    def __init__(
        self,
        data_dir: str | Path,
        clock: Clock,
        limits: JournalLimits,
        *,
        durability: str,
        new_epoch: Callable[[], str] = random_epoch,
        disk: Disk | None = None,
    ) -> None:
        if durability not in DURABILITIES:
            raise UserMistake(f"durability is one of {', '.join(DURABILITIES)}, not {durability}")
        self._disk = disk or Disk()
        self._site = Site(Path(data_dir) / "journal", limits.shards, self._disk.boot_id(), new_epoch, self._disk)
        self._durability = durability
        self._retention = Retention(
            limits.retention, limits.retention_size, limits.hard_limit, limits.for_archive, limits.tips_seconds, clock
        )
        segment_size = limits.segment_size
        if limits.hard_limit:  # active segments are never removed: together they must stay far below the limit
            segment_size = min(segment_size, max(1, limits.hard_limit // (4 * limits.shards)))
        self._rolling = Rolling(segment_size, limits.segment_seconds, durability == "fsync", clock)
        self._consumers = Consumers(self._site.directory / "consumers", limits.consumer_ttl, self._disk, clock)
        self._queue_size = limits.queue_size
        self._lock = -1
        self._revision = 0
        self._archived: dict[int, int] = {}
        self._logs: list[ShardLog] = []

    @property
    def instant(self) -> bool:
        return self._durability == "memory"

    # --- from open to stop ---

    def open(self, horizon: float) -> Recovered:
        """Lock the journal, truncate unacknowledged rows, and return the last `horizon` seconds of rows. Blocks."""
        try:
            self._site.directory.mkdir(0o700, parents=True, exist_ok=True)
            self._disk.sync_file(self._site.directory.parent)
            self._lock = lock(self._site.directory / "lock")
            return self._open(horizon)
        except OSError as error:
            self._unlock()
            raise UserMistake(f"the journal cannot be opened: {error}") from None
        except BaseException:
            self._unlock()
            raise

    def _open(self, horizon: float) -> Recovered:
        recovery = recover(self._site, horizon)
        self._consumers.load()
        self._recovery = recovery
        self._logs, self._archived, self._revision = recovery.logs, recovery.archived, recovery.revision
        self._commit_log = CommitLog(self._site.directory, self._disk)
        self._commit = GroupCommit(
            self._site.directory, self._logs, self._commit_log, recovery.group, self._rolling, self._disk
        )
        self._reader = Reader(self._logs)
        self._upkeep = Upkeep(
            self._logs,
            self._archived,
            self._consumers,
            self._retention,
            self._save,
            self._disk,
        )
        self._writer = Writer(self._commit, self._queue_size, self._probe, self._upkeep.rolled)
        self._save()
        self._commit_log.begin(recovery.group, {log.shard: log.active.end for log in self._logs})
        return recovery.answer

    async def start(self) -> None:
        self._writer.start()

    async def stop(self) -> None:
        """Write all queued rows, record the ends, and close. No further rows are accepted."""
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._writer.stop()
        self._upkeep.thread.shutdown(wait=True)
        self._reader.close()
        self._commit.close()
        self._commit_log.close()
        with suppress(OSError):  # then the shutdown was not clean, which the next start detects
            for log in self._logs:
                self._disk.sync(log.fd)
            # With durability memory, dropped rows were acknowledged: the recorded ends would be too low.
            self._save(clean=not (self.instant and self._writer.dropped_rows))
        for log in self._logs:
            log.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # --- called by writers and readers ---

    async def write(self, rows: Sequence[Row]) -> None:
        if self.instant or not rows:
            self.write_nowait(rows)
            return
        answer = asyncio.get_running_loop().create_future()
        if not self._writer.hand_over(rows, answer):
            raise Unavailable(self._writer.failure or "the journal cannot keep up")
        await answer

    def write_nowait(self, rows: Sequence[Row]) -> None:
        if rows and not self._writer.hand_over(rows):
            self._writer.drop(rows, self._writer.failure or "the journal cannot keep up")

    def spans(self) -> list[ShardSpan]:
        return self._reader.spans()

    def read(self, shard: int, first: int, end: int, max_bytes: int) -> AsyncIterator[bytes]:
        return self._reader.read(shard, first, end, max_bytes)

    def mark_archived(self, positions: dict[int, int]) -> None:
        for shard in positions:
            if not 0 <= shard < len(self._logs):
                raise BadRequest(f"unknown shard: {shard}")
        self._archived.update(positions)

    def archived_ends(self) -> dict[int, int]:
        return dict(self._archived)

    def consumers(self) -> list[Consumer]:
        return self._consumers.all()

    async def pin(self, name: str, marks: Marks) -> Consumer:
        return await asyncio.to_thread(self._consumers.pin, name, marks)

    async def move(self, name: str, marks: Marks) -> Consumer:
        return await asyncio.to_thread(self._consumers.move, name, marks)

    async def remove(self, name: str) -> bool:
        return await asyncio.to_thread(self._consumers.remove, name)

    def health(self) -> str:
        return self._writer.failure

    async def sweep(self) -> None:
        """Detect restored files, seal full segments, and apply retention, in another thread. Called periodically."""
        await asyncio.get_running_loop().run_in_executor(self._upkeep.thread, self._sweep)

    def _sweep(self) -> None:
        self._reader.recheck()
        self._upkeep.sweep()

    def gauges(self) -> dict[str, float]:
        segments = [segment for log in self._logs for generation in log.generations for segment in generation.segments]
        recovered = self._recovery.answer
        return {
            "journal_rows": sum(segment.rows for segment in segments),
            "journal_bytes": sum(segment.size for segment in segments),
            "journal_segments": len(segments),
            "journal_batches": sum(len(segment.firsts) for segment in segments),
            "journal_groups": self._commit.groups,
            "journal_groups_refused": self._writer.refused_groups,
            "journal_written_rows": self._commit.rows,
            "journal_dropped_rows": self._writer.dropped_rows,
            "journal_queue_rows": self._writer.queued_rows,
            "journal_lost_rows": self._upkeep.lost_rows,
            "journal_damaged_batches": self._reader.damaged_batches,
            "journal_damaged_shards": self._recovery.damaged,
            "journal_holes": sum(len(generation.holes) for log in self._logs for generation in log.generations),
            "journal_hole_rows": sum(
                end - first for log in self._logs for generation in log.generations for first, end in generation.holes
            ),
            "journal_shards_reset": len(recovered.reset_shards),
            "journal_cut_bytes": recovered.cut_bytes,
            **self._consumers.gauges(self._reader.spans()),
        }

    def _probe(self) -> None:
        path = self._site.directory / "probe"
        self._disk.replace(path, PROBE)
        path.unlink()

    def _save(self, clean: bool = False) -> None:
        self._revision += 1
        generations = [[generation.record() for generation in log.generations] for log in self._logs]
        record = Manifest(
            self._revision,
            len(self._logs),
            self._durability,
            self._site.boot_id,
            clean,
            self._commit.group,
            generations,
            self._archived,
        )
        save(self._site.directory, record, self._disk)

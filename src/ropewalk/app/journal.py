"""The journal of a server, made from the settings, and what only a server with a journal has: transactions and the endpoints
for readers.

Invariant: the journal is opened before the endpoints and closed after them. What it holds is restored into the backend before
any client can ask for it.
"""

import asyncio
import logging
import os
import secrets
import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from ropewalk.adapters.endpoints.http_guard import KeyGuard
from ropewalk.adapters.endpoints.journal import ConsumersEndpoint, JournalEndpoint, TransactionsEndpoint
from ropewalk.adapters.endpoints.routes import HttpRoute
from ropewalk.adapters.staging.files import FileStaging, copy_staging, damaged_staging
from ropewalk.app.data_directory import private_opener, unusable
from ropewalk.app.registry import JOURNAL_FILES, JOURNALS, ROW_READERS, resolve
from ropewalk.app.settings import Settings
from ropewalk.core.transactions import TransactionLedger
from ropewalk.engine.transactions import Transactions
from ropewalk.model.errors import UserMistake
from ropewalk.model.extras import install_command
from ropewalk.model.journal import Recovered, Restored
from ropewalk.model.limits import JournalLimits
from ropewalk.model.transactions import StagingLimits
from ropewalk.ports import ConsumerStore, Journal, JournalReader, Publisher, RowReader
from ropewalk.protocol.publications import PublicationLimits

if TYPE_CHECKING:
    from ropewalk.adapters.journals.arrow.backup import Copied
    from ropewalk.adapters.journals.arrow.inspection import Progress
    from ropewalk.adapters.journals.arrow.maintenance import JournalFiles, JournalReport
    from ropewalk.adapters.journals.arrow.repair import ArchivedRows, Repaired

logger = logging.getLogger("ropewalk.journal")

SWEEP_SECONDS = 10.0

KEY_BYTES = 32

FORMER_RENEWAL = 60.0
"""Interval at which an older version rewrote all session rows."""


class StoredJournal(Journal, JournalReader, ConsumerStore, Protocol):
    """A journal with its own lifecycle: `open`, `start`, `sweep` periodically, `stop`."""

    def open(self, horizon: float) -> Recovered:
        """Recovers the `horizon` seconds before its newest row. Raises UserMistake if it cannot be opened."""

    async def start(self) -> None: ...
    async def sweep(self) -> None: ...
    async def stop(self) -> None: ...


class Recovering(Protocol):
    def recover(self, recovered: Recovered, sessions_ttl: float, presence_ttl: float) -> Restored:
        """Restore the contents of a journal, before any other call."""


def build_journal(settings: Settings) -> StoredJournal:
    journal = settings.journal
    if not journal.data_dir:
        absent: StoredJournal = resolve(JOURNALS, "none")()
        return absent
    stored: StoredJournal = resolve(JOURNALS, "journal")(
        journal.data_dir,
        time.time,
        JournalLimits(
            journal.journal_shards,
            journal.journal_segment_size,
            journal.journal_retention,
            journal.journal_retention_size,
            journal.journal_hard_limit,
            journal.journal_consumer_ttl,
            for_archive=bool(settings.archive.archive_dir),
        ),
        durability=journal.durability,
    )
    return stored


def sessions_key(directory: str, derived: bytes) -> bytes:
    """The key of fingerprints in kept sessions: derived from the secret, or stored in `directory`, so that sessions resume in
    another process without a call of the application. Empty without either."""
    if derived or not directory:
        return derived
    path = Path(directory, "sessions.key")
    try:
        if path.exists() and len(key := path.read_bytes()) == KEY_BYTES:
            return key
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        key = secrets.token_bytes(KEY_BYTES)
        with open(path, "wb", opener=private_opener) as file:
            file.write(key)
    except OSError as error:
        raise unusable(path.parent, error) from None
    return key


def horizon(settings: Settings) -> float:
    """How many seconds of the journal a backend needs: the longest time for which it keeps anything.

    Session rows of any age are found, except in journals of an older version, which rewrote them periodically instead.
    """
    broker = settings.broker
    ruled = [rule.history_ttl for rule in settings.streams if rule.history_ttl is not None]
    return max(broker.history_ttl, broker.dedup_ttl, broker.sessions_ttl + 2 * FORMER_RENEWAL, *ruled)


class JournalKeeper:
    """The journal's lifecycle beside the node's: `start` before it, `stop` after it."""

    def __init__(self, settings: Settings, journal: StoredJournal, recovering: Recovering | None) -> None:
        self._settings = settings
        self._journal = journal
        self._recovering = recovering
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        recovered = self._journal.open(horizon(self._settings))
        restored = self._recover(recovered)
        await self._journal.start()
        self._journal.write_nowait(restored.interrupted)
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep())
        if self._settings.journal.data_dir:
            self._announce(recovered, restored)

    def _recover(self, recovered: Recovered) -> Restored:
        if self._recovering is None:
            return Restored(0, 0, 0, [])
        broker = self._settings.broker
        return self._recovering.recover(recovered, broker.sessions_ttl, broker.presence_ttl)

    async def stop(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        await self._journal.stop()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self._journal.sweep()
            except Exception:
                logger.exception("the sweep of the journal failed")

    def _announce(self, recovered: Recovered, restored: Restored) -> None:
        logger.info(
            "recovered from the journal",
            extra={
                "durability": self._settings.journal.durability,
                "shards": recovered.shards,
                "streams": restored.streams,
                "messages": restored.messages,
                "sessions": restored.sessions,
                "cut_bytes": recovered.cut_bytes,
                "reset_shards": len(recovered.reset_shards),
            },
        )
        for note in recovered.notes:
            logger.warning(note)


# --- transactions and endpoints --------------------------------------------------------------------------------------

JOURNAL_PATH = "/journal"
DIRECTORY = "transactions"


def build_transactions(settings: Settings, publisher: Publisher) -> Transactions | None:
    """None without a data directory: transactions must survive a crash."""
    journal, limits = settings.journal, settings.limits
    if not journal.data_dir:
        return None
    bounds = PublicationLimits(limits.max_stream_name, limits.max_publish_batch, limits.max_publish_size)
    read_rows: RowReader = partial(resolve(ROW_READERS, "journal"), limits=bounds)
    # One application may use half, so that it cannot keep all others from staging.
    staging = StagingLimits(max_bytes=journal.staging_size, max_app_bytes=journal.staging_size // 2)
    return Transactions(
        publisher, FileStaging(Path(journal.data_dir) / DIRECTORY), read_rows, TransactionLedger(staging), time.time
    )


def journal_routes(settings: Settings, journal: StoredJournal, transactions: Transactions, guard: KeyGuard) -> list[HttpRoute]:
    endpoint = TransactionsEndpoint(transactions, guard, settings.journal.max_stage_size)
    consumers = ConsumersEndpoint(journal, journal, guard)
    return [
        *JournalEndpoint(journal, guard).routes(JOURNAL_PATH),
        *consumers.routes(JOURNAL_PATH),
        *endpoint.routes(JOURNAL_PATH),
    ]


def verify_journal(data_dir: Path, progress: "Progress") -> "JournalReport":
    report = _files(data_dir, progress).verify()
    return msgspec.structs.replace(report, problems=[*report.problems, *damaged_staging(data_dir / DIRECTORY)])


def repair_journal(data_dir: Path, archive_dir: str, progress: "Progress") -> "Repaired":
    """Without an `archive_dir` only the manifest can be repaired. Damaged files of the archive are not used."""
    damaged: dict[str, str] = {}
    repaired = _files(data_dir, progress).repair(_archived(archive_dir, damaged) if archive_dir else None)
    return msgspec.structs.replace(repaired, damaged=[f"{path} {what}" for path, what in damaged.items()])


def back_up_journal(data_dir: Path, destination: Path, progress: "Progress") -> "Copied":
    """The destination appears once the copy is complete and on disk, and not at all if it fails."""
    if destination.exists():
        raise UserMistake(f"{destination} exists already; a backup needs a new directory")
    if data_dir.resolve() in destination.resolve().parents:
        raise UserMistake("a backup cannot be inside the directory it copies")
    partial = destination.with_name(f".{destination.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(0o700, parents=True)
        copied = _copy(data_dir, partial, progress)
        partial.rename(destination)
        _sync(destination.parent)
        return copied
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _copy(data_dir: Path, target: Path, progress: "Progress") -> "Copied":
    """Marks of consumers and states of transactions first: rows are copied last, so they include all positions referred to."""
    journal = _files(data_dir, progress).copy(target)
    journal.consumers()
    copy_staging(data_dir / DIRECTORY, target / DIRECTORY)
    copied = journal.rows()
    for path in [target, *(target / DIRECTORY).rglob("*")]:
        _sync(path)
    return copied


def _files(data_dir: Path, progress: "Progress") -> "JournalFiles":
    files: JournalFiles = resolve(JOURNAL_FILES, "journal")(data_dir, progress)
    return files


def _archived(archive_dir: str, damaged: dict[str, str]) -> "ArchivedRows":
    """Adds damaged files to `damaged`, with the reason."""
    try:
        from deltalake import DeltaTable
    except ModuleNotFoundError:
        raise UserMistake(f"reading an archive needs deltalake: {install_command('archive')}") from None
    from ropewalk.pipeline.tiered import ArchiveTable

    if not DeltaTable.is_deltatable(archive_dir):
        raise UserMistake(f"no archive in {archive_dir}")
    return ArchiveTable(archive_dir, lambda error: damaged.update({error.path: error.what})).rows


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

"""What is done to a data directory beside the server: verify it, repair it from an archive, back it up.

Invariant: the parts of a data directory are copied in an order that makes the copy consistent.
"""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ropewalk.adapters.staging.files import copy_staging, damaged_staging
from ropewalk.app.journal import DIRECTORY
from ropewalk.app.registry import JOURNAL_FILES, resolve
from ropewalk.model.errors import UserMistake
from ropewalk.model.extras import install_command

if TYPE_CHECKING:
    from ropewalk.adapters.journals.arrow.backup import Copied
    from ropewalk.adapters.journals.arrow.inspection import Progress
    from ropewalk.adapters.journals.arrow.maintenance import JournalFiles, JournalReport
    from ropewalk.adapters.journals.arrow.repair import ArchivedRows, Repaired


def verify(data_dir: Path, progress: "Progress") -> "JournalReport":
    report = _files(data_dir, progress).verify()
    return msgspec.structs.replace(report, problems=[*report.problems, *damaged_staging(data_dir / DIRECTORY)])


def repair(data_dir: Path, archive_dir: str, progress: "Progress") -> "Repaired":
    """Without an `archive_dir` only the journal's record of itself can be repaired. Damaged files of the archive are not
    used."""
    damaged: dict[str, str] = {}
    repaired = _files(data_dir, progress).repair(_archived(archive_dir, damaged) if archive_dir else None)
    return msgspec.structs.replace(repaired, damaged=[f"{path} {what}" for path, what in damaged.items()])


def back_up(data_dir: Path, destination: Path, progress: "Progress") -> "Copied":
    """The destination appears when the copy is complete and on disk, and not at all if it fails."""
    if destination.exists():
        raise UserMistake(f"{destination} exists already; a backup is made in a new directory")
    if data_dir.resolve() in destination.resolve().parents:
        raise UserMistake("a backup cannot be made inside of the directory that it copies")
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
    """Marks of consumers and states of transactions first: what they speak of is then in the rows, which are copied last."""
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
    """Damaged files that are met are put into `damaged`, with what is wrong with them."""
    try:
        from deltalake import DeltaTable
    except ModuleNotFoundError:
        raise UserMistake(f"reading an archive needs deltalake: {install_command('archive')}") from None
    from ropewalk.pipeline.tiered import ArchiveTable

    if not DeltaTable.is_deltatable(archive_dir):
        raise UserMistake(f"there is no archive in {archive_dir}")
    return ArchiveTable(archive_dir, lambda error: damaged.update({error.path: error.what})).rows


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

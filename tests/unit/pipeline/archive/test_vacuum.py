"""Vacuum of the archive: leftover files are deleted, files in use are kept."""

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from ropewalk.pipeline.archive import compact, vacuum
from ropewalk.pipeline.archive.log import append
from tests.archive_writer import Scribe
from tests.unit.pipeline.archives import messages, read_rows, write_files


def leftover_file(scribe: Scribe, name: str) -> Path:
    return scribe.root / write_files(scribe, name, scribe.rows(messages("z", 1, 10)))[0].path


def with_age(path: Path, age: timedelta) -> Path:
    moment = time.time() - age.total_seconds()
    os.utime(path, (moment, moment))
    return path


def test_files_of_a_failed_attempt_of_a_committed_batch_are_deleted(scribe: Scribe) -> None:
    scribe.archive(messages("a", 1, 10))
    left = leftover_file(scribe, "query-0-0-1-0badf00d")
    assert vacuum(str(scribe.root)) == []
    assert vacuum(str(scribe.root), timedelta(0), dry_run=True) == [str(left.relative_to(scribe.root))]
    assert left.exists()

    vacuum(str(scribe.root), timedelta(0))

    assert not left.exists()
    assert len(read_rows(scribe)) == 10


@pytest.mark.parametrize("name", ["query-1-0-0-0badf00d", "another-0-0-0-0badf00d", "compact-0badf00d"])
def test_files_of_an_uncommitted_batch_are_kept(scribe: Scribe, name: str) -> None:
    """A retention of seconds once deleted the files of a batch that was not committed yet."""
    scribe.archive(messages("a", 1, 10))
    rows = scribe.rows(messages("a", 11, 20))
    uncommitted = write_files(scribe, name, rows)
    assert vacuum(str(scribe.root), timedelta(0)) == []
    append(str(scribe.root), "query", 1, uncommitted)
    assert len(read_rows(scribe)) == 20

    left = leftover_file(scribe, name.replace("-1-", "-2-").replace("0badf00d", "0badf00e"))
    assert vacuum(str(scribe.root), timedelta(0), force=True) == [str(left.relative_to(scribe.root))]
    left = with_age(leftover_file(scribe, name.replace("-1-", "-2-").replace("0badf00d", "0badf00f")), timedelta(hours=25))
    assert vacuum(str(scribe.root), timedelta(0)) == [str(left.relative_to(scribe.root))]
    assert len(read_rows(scribe)) == 20


def test_files_that_were_just_compacted_are_kept_for_their_readers(scribe: Scribe) -> None:
    for first in (1, 11):
        scribe.archive(messages("a", first, first + 9))
    old = [with_age(Path(uri.removeprefix("file://")), timedelta(days=2)) for uri in DeltaTable(scribe.root).file_uris()]
    compact(str(scribe.root))
    assert vacuum(str(scribe.root), timedelta(minutes=30)) == [], "written long ago, but compacted just now"
    assert all(path.exists() for path in old)
    assert len(vacuum(str(scribe.root), timedelta(0))) == 2
    assert len(read_rows(scribe)) == 20

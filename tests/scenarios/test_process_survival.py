"""Python programs that must end normally: files truncated while they are read, and a handler that never returns."""

import os
import subprocess
import sys
from pathlib import Path

from ropewalk.testing.clock import ManualClock
from tests.archive_writer import Scribe, message
from tests.journals import publication, running

TIMEOUT_SECONDS = 60

READ_TRUNCATED_ARCHIVE = """
import os, sys
from pathlib import Path
import pyarrow.parquet as pq
from ropewalk.adapters.archives import parquet_index
from ropewalk.model.history import HistoryRange

root, path = Path(sys.argv[1]), sys.argv[2]
read_row_group = pq.ParquetFile.read_row_group

def truncate_first(self, *given, **options):
    os.truncate(root / path, 0)
    return read_row_group(self, *given, **options)

pq.ParquetFile.read_row_group = truncate_first
file = parquet_index.File(path, "", "z", 0, 100, float("inf"))
try:
    wanted = HistoryRange("a", "e", 1, 30, 10, 0.0)
    parquet_index.ParquetIndex(root).read([file], wanted)
except parquet_index.UnreadableFile:
    print("unreadable")
"""

SCAN_TRUNCATED_SEGMENT = """
import os, sys
from pathlib import Path
from ropewalk.adapters.journals.arrow import segment

path, frame_at = Path(sys.argv[1]), segment.frame_at

def truncate_first(data, at):
    os.truncate(path, 0)
    return frame_at(data, at)

segment.frame_at = truncate_first
print(segment.scan(path, 0, 0, 12, ended=True)[0].rows)
"""

LEAVE_HANDLER_RUNNING = """
import asyncio, threading
from ropewalk.adapters.apps.python.threads import Threads
from ropewalk.core.stats import Stats

begun = threading.Event()

def hang():
    begun.set()
    threading.Event().wait()

async def main():
    call = asyncio.create_task(Threads(1, Stats())(hang))
    await asyncio.to_thread(begun.wait)
    call.cancel()
    await asyncio.wait([call])

asyncio.run(main())
print("ended")
"""


def run_program(program: str, *arguments: Path) -> str:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_archive_file_truncated_while_it_is_read_is_unreadable(tmp_path: Path) -> None:
    """A memory-mapped file would end the process with SIGBUS."""
    scribe = Scribe(tmp_path / "archive", shards=1, row_group=8)
    scribe.archive([message("a", offset, payload=os.urandom(10_000)) for offset in range(1, 31)])
    [path] = scribe.root.rglob("*.parquet")
    assert run_program(READ_TRUNCATED_ARCHIVE, scribe.root, path.relative_to(scribe.root)) == "unreadable\n"


async def test_journal_segment_truncated_while_it_is_scanned_keeps_the_rows_read_before(tmp_path: Path) -> None:
    """A memory-mapped file would end the process with SIGBUS."""
    async with running(tmp_path, ManualClock(), shards=1) as (journal, _):
        for offset in range(1, 13):
            await journal.write([publication("a", offset)])
    [path] = (tmp_path / "journal" / "shard=00").glob("*.arrow")
    assert run_program(SCAN_TRUNCATED_SEGMENT, path) == "12\n"


def test_handler_that_never_returns_does_not_keep_the_process_alive() -> None:
    assert run_program(LEAVE_HANDLER_RUNNING) == "ended\n"

"""`ropewalk journal`: the report of a repair about losses that no archive can restore."""

import asyncio
from pathlib import Path

import pytest

from ropewalk.cli.main import main
from ropewalk.testing.clock import ManualClock
from tests.journals import publication, running


async def write_journal_without_states(directory: Path) -> None:
    """Write a journal, trim its oldest rows and delete the state files that record the trimming."""
    clock = ManualClock()
    async with running(directory, clock, shards=1, segment_size=4000, retention=100.0, for_archive=False) as (journal, _):
        for offset in range(1, 31):
            await journal.write([publication("busy", offset, at=clock())])
            clock.advance(10)
        await journal.sweep()
    for path in directory.rglob("*.state"):
        path.unlink()


def test_repair_reports_lost_state_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(write_journal_without_states(tmp_path))
    assert main(["journal", "verify", str(tmp_path)]) == 1
    capsys.readouterr()

    assert main(["journal", "repair", str(tmp_path)]) == 1

    output = capsys.readouterr().out
    assert "shards: 0. All remaining rows are readable. The next start rebuilds the state from them" in output
    assert "nothing to repair" not in output

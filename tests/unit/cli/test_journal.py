"""`ropewalk journal`: what a repair says of losses that no archive can bring back."""

import asyncio
from pathlib import Path

import pytest

from ropewalk.cli.main import main
from ropewalk.testing.clock import ManualClock
from tests.journals import publication, running


async def without_states(directory: Path) -> None:
    """A journal whose oldest rows are gone, and the states that told of them too."""
    clock = ManualClock()
    async with running(directory, clock, shards=1, segment_size=4000, retention=100.0, for_archive=False) as (journal, _):
        for offset in range(1, 31):
            await journal.write([publication("busy", offset, at=clock())])
            clock.advance(10)
        await journal.sweep()
    for path in directory.rglob("*.state"):
        path.unlink()


def test_a_repair_does_not_call_lost_states_nothing_to_repair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(without_states(tmp_path))
    assert main(["journal", "verify", str(tmp_path)]) == 1
    capsys.readouterr()

    assert main(["journal", "repair", str(tmp_path)]) == 1

    said = capsys.readouterr().out
    assert "shards: 0. All rows there are can be read. The next start makes the state anew from them" in said
    assert "nothing to repair" not in said

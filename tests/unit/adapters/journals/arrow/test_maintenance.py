"""Verification finds every lost position and changes nothing."""

from pathlib import Path

import pytest

from ropewalk.adapters.journals.arrow.maintenance import verify
from ropewalk.adapters.journals.arrow.records import NAMES
from ropewalk.model.errors import UserMistake
from ropewalk.testing.clock import ManualClock
from tests.journals import publication, running
from tests.unit.adapters.journals.arrow.damaged_journal import KilledJournal, check_progress


async def test_undamaged_journal_verifies_while_it_runs_and_after_it_stopped(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock(), segment_size=20_000) as (journal, _):
        for number in range(1, 200):
            await journal.write([publication(f"stream {each}", number) for each in range(9)])
            if number % 40 == 0:
                report = verify(tmp_path, check_progress)
                assert (report.whole, report.running, report.remarks) == (True, True, [])
                assert sum(shard.rows for shard in report.shards) == 9 * number
                await journal.sweep()
    report = verify(tmp_path, check_progress)
    assert (report.whole, report.running, report.format, len(report.shards)) == (True, False, 2, 3)


async def test_verification_reports_every_lost_position_and_changes_nothing(damaged: KilledJournal) -> None:
    lost = damaged.damage()
    before = damaged.files()
    report = damaged.verify()
    assert not report.whole
    assert [shard.hole_rows for shard in report.shards] == [0, len(lost), 0]
    assert [shard.rows for shard in report.shards] == [
        len(damaged.rows[0]),
        len(damaged.rows[1]) - len(lost),
        len(damaged.rows[2]),
    ]
    assert damaged.files() == before


async def test_damage_without_lost_rows_is_reported_as_problems_and_remarks(damaged: KilledJournal) -> None:
    journal = damaged.directory / "journal"
    (journal / NAMES[1]).write_bytes(b"")
    index, state = sorted(journal.rglob("*.idx"))[0], sorted(journal.rglob("*.state"))[0]
    for path in (index, state):
        path.write_bytes(path.read_bytes()[:-1])
    (journal / "consumers" / "0.json").write_bytes(b"{}")
    report = damaged.verify()
    assert report.holes == []
    assert report.problems == ["the consumer in 0.json cannot be read"]
    assert [remark.partition(" is damaged")[1] for remark in report.remarks] == [" is damaged"] * 3


def test_verification_without_a_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match="no journal in"):
        verify(tmp_path, check_progress)

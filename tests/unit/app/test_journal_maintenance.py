"""Repair of a journal from an archive with damaged files."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from ropewalk.app.journal import repair_journal
from ropewalk.cli import journal as command
from ropewalk.pipeline.archive.layout import partitioned, write_file
from ropewalk.pipeline.archive.log import append
from ropewalk.testing.clock import ManualClock
from tests.archive_writer import cut_file, flip_payload
from tests.journals import publication, read_all, running, table

ROWS, BATCH = 30, 10


@pytest.fixture
async def archive(tmp_path: Path) -> Path:
    """Archive of a journal that lost all rows: three files of ten rows."""
    root = tmp_path / "archive"
    async with running(tmp_path / "data", ManualClock(), shards=1) as (journal, _):
        await journal.write([publication("a", offset) for offset in range(1, ROWS + 1)])
        rows = await table(journal, 0, 0, ROWS)
    for batch in range(ROWS // BATCH):
        part = rows.slice(batch * BATCH, BATCH).append_column("shard", pa.array([0] * BATCH, pa.int32()))
        files = [write_file(root, date, shard, f"batch-{batch}", own) for date, shard, own in partitioned(part)]
        assert append(str(root), "query", batch, files)
    [segment] = (tmp_path / "data").rglob("*.arrow")
    segment.unlink()
    return root


@pytest.mark.parametrize("damage", [flip_payload, cut_file])
async def test_rows_of_a_damaged_archive_file_are_reported_as_still_lost(
    archive: Path, tmp_path: Path, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    [damaged] = archive.rglob("batch-1.*.parquet")
    good = damaged.read_bytes()
    damage(damaged)
    repair = ["repair", str(tmp_path / "data"), "--archive", str(archive)]

    assert command.run(repair) == 1

    output = capsys.readouterr().out
    assert f"not used: {damaged} " in output
    assert "rows restored" in output
    assert f"rows still lost: {BATCH} " in output
    damaged.write_bytes(good)
    assert command.run(repair) == 0
    async with running(tmp_path / "data", ManualClock(), shards=1) as (journal, _):
        assert [row.value for row in (await read_all(journal))[0].values()] == [
            publication("a", offset).value for offset in range(1, ROWS + 1)
        ]


async def test_intact_archive_restores_all_rows(archive: Path, tmp_path: Path) -> None:
    repaired = repair_journal(tmp_path / "data", str(archive), lambda done, total: None)
    assert (repaired.filled_rows, repaired.missing_rows, repaired.damaged) == (ROWS, 0, [])

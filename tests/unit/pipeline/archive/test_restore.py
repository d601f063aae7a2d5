"""Lost rows of the archive: one warning that names them, and a restore from the journal that adds each row once."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from ropewalk.model.journal import ShardSpan
from ropewalk.pipeline.archive import archived_positions, vacuum
from ropewalk.pipeline.archive.coverage import missing_positions
from ropewalk.pipeline.archive.log import append, next_restore, opened, restore
from ropewalk.pipeline.archive.reporting import report_archived
from ropewalk.pipeline.archive.restore import restore_rows
from ropewalk.pipeline.checked import DamagedFile
from ropewalk.pipeline.journal_client import JournalClient, JournalState
from ropewalk.pipeline.offsets import Spans, by_shard
from ropewalk.pipeline.options import Address
from tests.archive_writer import Scribe, cut_file
from tests.unit.pipeline.archives import batch_file, messages, read_rows, write_files

WINDOW = 7
"""Rows that the journal returns for one request."""


class FakeClient(JournalClient):
    """A journal with rows of shard 0 in the given spans, and what was reported to it."""

    def __init__(self, rows: pa.Table, spans: Sequence[tuple[int, int]]) -> None:
        super().__init__(Address("http://none", ""))
        self.rows = rows
        self._spans = [ShardSpan(0, "e", first, end) for first, end in spans]
        self.reported: dict[int, int] = {}
        self.requests = 0

    def journal(self) -> JournalState:
        return JournalState(1, self._spans, dict(self.reported))

    def spans(self) -> Spans:
        return by_shard(self._spans, 1)

    def read(self, shard: int, first: int, end: int, max_bytes: int = 0) -> pa.Table:
        assert any(span.first <= first < end <= span.end for span in self._spans)
        self.requests += 1
        return self.rows.drop_columns(["shard"]).slice(first, min(end - first, WINDOW))

    def archived(self, positions: object) -> None:
        assert isinstance(positions, dict)
        self.reported |= positions


def archived_with_client(scribe: Scribe, *spans: tuple[int, int]) -> FakeClient:
    """40 archived rows, all reported, of which the journal has those in `spans`."""
    rows = scribe.rows(messages("a", 1, 20, second=0) + messages("a", 21, 40, second=3600))
    for batch in (0, 1):
        files = write_files(scribe, f"query-{batch}-0-0-{batch:08x}", rows.slice(batch * 20, 20))
        append(str(scribe.root), "query", batch, files)
    client = FakeClient(rows, spans)
    report_archived(client, str(scribe.root))
    assert client.reported == {0: 40}
    return client


def test_one_warning_names_the_lost_rows_that_the_journal_has(scribe: Scribe, caplog: pytest.LogCaptureFixture) -> None:
    client = archived_with_client(scribe, (3, 40))
    DeltaTable(scribe.root).delete("position IN (1, 5, 6, 8, 10, 12, 14, 30)")

    for look in (False, True):  # the report of a commit, and that of a job
        report_archived(client, str(scribe.root), look=look)
        [record] = caplog.records
        assert "the journal still has 7 of them" in record.getMessage()
        places = "shard 0 positions 5 to 6, shard 0 position 8, shard 0 position 10, shard 0 position 12 and 2 more. "
        assert places in record.getMessage()
        assert "--set archive.restore=true" in caplog.text
        caplog.clear()
    report_archived(client, str(scribe.root))
    assert not caplog.records, "every commit reports"
    assert client.reported == {0: 5}


def test_one_warning_names_the_shards_of_an_archive_that_has_less_than_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scribe = Scribe(tmp_path / "archive", shards=8)
    scribe.archive([each for name in "abcdefghijklmnop" for each in messages(name, 1, 5)])
    ends = archived_positions(str(scribe.root))
    assert len(ends) > 5
    client = FakeClient(scribe.rows([]), [])
    client.reported = dict(ends)

    report_archived(client, str(tmp_path / "another"), look=True)

    [record] = caplog.records
    assert "perhaps by another archive" in record.getMessage()
    shard, end = min(ends.items())
    assert f"shard {shard} ends at 0 (reported: {end}), " in record.getMessage()
    assert record.getMessage().endswith(f" and {len(ends) - 4} more")


def test_lost_rows_are_restored_once_from_the_journal(scribe: Scribe, caplog: pytest.LogCaptureFixture) -> None:
    client = archived_with_client(scribe, (3, 20), (20, 40))
    before = read_rows(scribe)
    DeltaTable(scribe.root).delete("position IN (5, 18, 19, 20, 39) OR (position >= 24 AND position < 35)")

    assert restore_rows(client, str(scribe.root)) == 16
    assert client.requests < 8, "nearby rows share a request"
    assert restore_rows(client, str(scribe.root)) == 0

    assert read_rows(scribe).select(before.column_names).equals(before)
    assert missing_positions(DeltaTable(scribe.root), str(scribe.root)) == []
    report_archived(client, str(scribe.root), look=True)
    assert client.reported == {0: 40}
    assert not caplog.records
    assert vacuum(str(scribe.root)) == []


def test_rows_that_the_journal_has_removed_are_not_restored(scribe: Scribe) -> None:
    client = archived_with_client(scribe, (10, 40))
    DeltaTable(scribe.root).delete("position IN (5, 12)")

    assert restore_rows(client, str(scribe.root)) == 1

    assert [each.first for each in missing_positions(DeltaTable(scribe.root), str(scribe.root))] == [5]


def test_older_version_of_the_table_is_completed_with_the_rows_archived_since(scribe: Scribe) -> None:
    older = archived_with_client(scribe, (30, 40))
    version = DeltaTable(scribe.root).version()
    DeltaTable(scribe.root).delete("position IN (5, 12, 33)")
    newer = scribe.rows(messages("a", 41, 50))
    append(str(scribe.root), "query", 2, write_files(scribe, "query-2-0-0-00000002", newer))
    client = FakeClient(pa.concat_tables([older.rows, newer]), [(30, 50)])

    DeltaTable(scribe.root).restore(version)

    assert restore_rows(client, str(scribe.root)) == 10
    assert read_rows(scribe)["position"].to_pylist() == list(range(50))


def test_second_of_two_concurrent_restores_fails(scribe: Scribe) -> None:
    client = archived_with_client(scribe, (0, 40))
    DeltaTable(scribe.root).delete("position = 5")
    table = opened(str(scribe.root))
    assert table is not None
    rows = client.read(0, 5, 6).append_column("shard", pa.array([0], pa.int32()))
    other = write_files(scribe, f"ropewalk.restore-{next_restore(table)}-0-0-00000000", rows)

    assert restore_rows(client, str(scribe.root)) == 1
    with pytest.raises(CommitFailedError):
        restore(table, other)

    assert read_rows(scribe)["position"].to_pylist() == list(range(40))


def test_damaged_file_that_may_hold_the_rows_is_named(scribe: Scribe) -> None:
    client = archived_with_client(scribe, (0, 40))
    rows = scribe.rows(messages("a", 41, 50)).filter(pa.array([True, False] * 5))
    append(str(scribe.root), "query", 2, write_files(scribe, "query-2-0-0-00000002", rows))
    cut_file(batch_file(scribe, 2))

    with pytest.raises(DamagedFile, match="query-2-0-0"):
        restore_rows(client, str(scribe.root))

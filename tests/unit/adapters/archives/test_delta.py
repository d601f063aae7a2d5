"""The archive as the server reads it: exact ranges for any layout of the files, followed by the journal's tail."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from ropewalk.adapters.archives import delta
from ropewalk.adapters.archives.delta import DeltaArchive, begins_after
from ropewalk.core.ring import locate_shard
from ropewalk.model.errors import BadRequest, Unavailable
from ropewalk.model.history import ColdPiece, HistoryRange
from ropewalk.model.journal import ShardSpan
from ropewalk.model.messages import Registered
from ropewalk.pipeline.archive import compact, vacuum
from tests.archive_writer import START, Scribe, message

FOREVER = 10**9


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeJournal:
    """One shard of a journal. Its oldest kept row has the position `kept`."""

    def __init__(self, rows: pa.Table, shard: int, kept: int = 0, former: Sequence[ShardSpan] = ()) -> None:
        self._rows = rows
        self._shard = shard
        self.kept = kept
        self._former = former
        self.asked: list[int] = []

    def spans(self) -> list[ShardSpan]:
        return [*self._former, ShardSpan(self._shard, "s", self.kept, len(self._rows))]

    async def read(self, shard: int, first: int, end: int, max_bytes: int) -> AsyncIterator[bytes]:
        self.asked.append(first)
        if first < self.kept:
            raise BadRequest("gone")
        whole = pa.BufferOutputStream()
        piece = self._rows.slice(first - first % 10, 25)  # whole batches: it may begin earlier and end later
        with pa.ipc.new_stream(whole, piece.schema) as stream:
            stream.write_table(piece)
        yield whole.getvalue().to_pybytes()

    def mark_archived(self, positions: dict[int, int]) -> None: ...

    def archived_ends(self) -> dict[int, int]:
        return {}


def run(stream: str, first: int, last: int, **fields: object) -> list[Registered]:
    return [message(stream, offset, **fields) for offset in range(first, last + 1)]  # type: ignore[arg-type]


@pytest.fixture
def scribe(tmp_path: Path) -> Scribe:
    return Scribe(tmp_path / "archive", row_group=8)


@pytest.fixture
async def archive(scribe: Scribe) -> AsyncIterator[DeltaArchive]:
    archive = DeltaArchive(str(scribe.root), scribe.shards, Clock(), refresh=0.0)
    yield archive
    await archive.stop()


async def offsets(archive: DeltaArchive, first: int, last: int, limit: int = FOREVER, stream: str = "a") -> list[int]:
    return [each.offset for each in (await archive.read(stream, HistoryRange(stream, "e", first, last, limit))).messages]


async def test_file_that_another_tool_has_rewritten_is_read(scribe: Scribe, archive: DeltaArchive) -> None:
    scribe.archive(run("a", 1, 20))
    DeltaTable(scribe.root).delete("offset = 5")
    assert await offsets(archive, 1, 20) == [offset for offset in range(1, 21) if offset != 5]


async def test_missing_archive_is_empty_and_healthy(archive: DeltaArchive) -> None:
    assert await archive.read("a", HistoryRange("a", "e", 1, 10, 10)) == ColdPiece()
    assert archive.health() == ""


async def test_range_returns_the_registered_messages(scribe: Scribe, archive: DeltaArchive) -> None:
    last = Registered("a", b"{}", START.timestamp() + 0.25, "e", 31, exclude_socket="sid", broadcast_type="whisper")
    scribe.archive([*run("a", 1, 30), *run("b", 1, 30), last])

    assert (await archive.read("a", HistoryRange("a", "e", 7, 9, 10))).messages == tuple(run("a", 7, 9))
    assert (await archive.read("a", HistoryRange("a", "e", 31, 31, 10))).messages == (last,)


async def test_truncated_result_is_marked(scribe: Scribe, archive: DeltaArchive) -> None:
    scribe.archive(run("a", 1, 30))

    assert await archive.read("a", HistoryRange("a", "e", 5, 30, 4)) == ColdPiece(tuple(run("a", 5, 8)), more=True)
    assert await archive.read("a", HistoryRange("a", "e", 27, 30, 4)) == ColdPiece(tuple(run("a", 27, 30)), more=False)


async def test_result_is_bounded_by_bytes(scribe: Scribe, archive: DeltaArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.adapters.archives.parquet_index.MAX_BYTES", 100)
    scribe.archive(run("a", 1, 64, payload=b"x" * 60))

    piece = await archive.read("a", HistoryRange("a", "e", 1, 64, FOREVER))

    assert piece == ColdPiece(tuple(run("a", 1, 8, payload=b"x" * 60)), more=True)


async def test_rows_of_other_epochs_and_kinds_are_left_out(scribe: Scribe, archive: DeltaArchive) -> None:
    old = run("a", 1, 20, epoch="old", payload=b"old")
    scribe.archive([*run("a", 1, 20), *old], joined=[("a", "sid 1"), ("a", "sid 2")])

    assert (await archive.read("a", HistoryRange("a", "e", 1, 40, FOREVER))).messages == tuple(run("a", 1, 20))
    assert (await archive.read("a", HistoryRange("a", "old", 1, 40, FOREVER))).messages == tuple(old)
    assert (await archive.read("a", HistoryRange("a", "old", 19, 40, FOREVER))).messages == tuple(old[-2:])
    assert await archive.read("a", HistoryRange("a", "other", 1, 40, FOREVER)) == ColdPiece()


async def test_since_excludes_older_messages(scribe: Scribe, archive: DeltaArchive) -> None:
    scribe.archive([message("a", offset, second=offset) for offset in range(1, 200)])  # past midnight, and into a second date

    piece = await archive.read("a", HistoryRange("a", "e", 1, 199, FOREVER, since=(START + timedelta(seconds=150)).timestamp()))

    assert [each.offset for each in piece.messages] == list(range(150, 200))


async def test_new_files_are_found_after_the_refresh_interval(scribe: Scribe) -> None:
    clock = Clock()
    archive = DeltaArchive(str(scribe.root), scribe.shards, clock, refresh=2.0)
    scribe.archive(run("a", 1, 10))
    assert await offsets(archive, 1, 20) == list(range(1, 11))
    scribe.archive(run("a", 11, 20))

    assert await offsets(archive, 1, 20) == list(range(1, 11))
    clock.now += 2.0
    assert await offsets(archive, 1, 20) == list(range(1, 21))
    await archive.stop()


async def test_compaction_and_vacuum_change_no_result(scribe: Scribe) -> None:
    archive = DeltaArchive(str(scribe.root), scribe.shards, Clock(), refresh=3600.0)  # a missing file forces a refresh
    for first in range(1, 101, 10):
        scribe.archive([*run("a", first, first + 9), *run("b", first, first + 9)])
    before = await archive.read("a", HistoryRange("a", "e", 1, 100, FOREVER))

    done = compact(str(scribe.root))
    deleted = vacuum(str(scribe.root), timedelta(0))

    assert (done.files_before, done.files_after, done.rows) == (10, 1, 200)
    assert len(deleted) == 10
    assert await archive.read("a", HistoryRange("a", "e", 1, 100, FOREVER)) == before
    assert await offsets(archive, 38, 41, stream="b") == [38, 39, 40, 41]
    await archive.stop()


async def test_rows_not_archived_yet_are_read_from_the_journal(scribe: Scribe) -> None:
    shard = locate_shard("a", scribe.shards)
    rows = Scribe(scribe.root, scribe.shards).rows(run("a", 1, 100))
    scribe.archive(run("a", 1, 30))
    journal = FakeJournal(rows, shard)
    archive = DeltaArchive(str(scribe.root), scribe.shards, Clock(), refresh=2.0, journal=journal)

    assert await offsets(archive, 25, 95) == list(range(25, 96))
    assert await offsets(archive, 25, 95, limit=40) == list(range(25, 65))
    assert (await archive.read("a", HistoryRange("a", "e", 25, 95, 40))).more
    assert min(journal.asked) == 30  # nothing that is archived is read twice
    journal.asked.clear()
    assert await offsets(archive, 1, 30) == list(range(1, 31))
    assert journal.asked == []
    await archive.stop()


async def test_rows_deleted_from_the_table_are_read_from_the_journal_while_it_has_them(tmp_path: Path) -> None:
    scribe = Scribe(tmp_path / "archive", shards=1)
    rows = Scribe(scribe.root, 1).rows([*run("a", 1, 60), *run("b", 1, 40)])
    scribe.archive([*run("a", 1, 60), *run("b", 1, 20)])
    journal = FakeJournal(rows, 0)
    archive = DeltaArchive(str(scribe.root), 1, Clock(), refresh=0.0, journal=journal)
    assert await offsets(archive, 1, 60) == list(range(1, 61))
    assert journal.asked == [], "the table is complete"
    DeltaTable(scribe.root).delete("stream = 'a' AND offset IN (1, 10, 11, 30, 60)")

    assert await offsets(archive, 1, 60) == list(range(1, 61))
    assert await offsets(archive, 5, 25) == list(range(5, 26))
    assert await offsets(archive, 5, 25, limit=8) == list(range(5, 13))
    assert (await archive.read("a", HistoryRange("a", "e", 5, 25, 8))).more
    assert await offsets(archive, 60, 60) == [60]
    journal.asked.clear()
    assert await offsets(archive, 12, 29) == list(range(12, 30))
    assert journal.asked == [], "nothing is missing in this range"

    journal.kept = 20
    assert await offsets(archive, 1, 60) == [*range(2, 10), *range(12, 61)]
    await archive.stop()


async def test_deleted_rows_are_searched_in_a_bounded_part_of_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "TAIL_BYTES", 1)  # one piece, of 25 rows
    scribe = Scribe(tmp_path / "archive", shards=1)
    scribe.archive(run("a", 1, 100))
    journal = FakeJournal(Scribe(scribe.root, 1).rows(run("a", 1, 100)), 0)
    archive = DeltaArchive(str(scribe.root), 1, Clock(), refresh=0.0, journal=journal)
    DeltaTable(scribe.root).delete("offset IN (10, 90)")

    assert await offsets(archive, 1, 100) == [*range(1, 90), *range(91, 101)]
    assert len(journal.asked) == 1
    await archive.stop()


async def test_journal_tail_longer_than_one_read_is_continued(scribe: Scribe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "TAIL_BYTES", 1)  # one piece, of 25 rows
    journal = FakeJournal(Scribe(scribe.root, 1).rows([*run("a", 1, 40), *run("b", 1, 60)]), shard=0)
    archive = DeltaArchive(str(scribe.root), 1, Clock(), refresh=0.0, journal=journal)

    assert await archive.read("a", HistoryRange("a", "e", 1, 40, FOREVER)) == ColdPiece(tuple(run("a", 1, 25)), more=True)
    with pytest.raises(Unavailable, match="too far behind"):
        await archive.read("b", HistoryRange("b", "e", 1, 60, FOREVER))
    await archive.stop()


async def test_archive_is_refreshed_when_the_journal_no_longer_has_the_tail(scribe: Scribe) -> None:
    rows = Scribe(scribe.root, scribe.shards).rows(run("a", 1, 100))
    journal = FakeJournal(rows, locate_shard("a", scribe.shards))
    archive = DeltaArchive(str(scribe.root), scribe.shards, Clock(), refresh=3600.0, journal=journal)
    scribe.archive(run("a", 1, 30))
    assert await offsets(archive, 1, 100) == list(range(1, 101))

    scribe.archive(run("a", 31, 60))
    journal.kept = 60

    assert await offsets(archive, 1, 100) == list(range(1, 101))
    await archive.stop()


def test_position_before_the_first_kept_row_is_gone_despite_an_empty_former_generation(subtests: pytest.Subtests) -> None:
    for position, gone in [(50, True), (150, True), (1020, False), (1500, False)]:
        with subtests.test(position=position, gone=gone):
            journal = FakeJournal(pa.table({"position": range(2000)}), 3, kept=1020, former=[ShardSpan(3, "former", 100, 100)])

            assert begins_after(journal, 3, position) is gone


async def test_reads_beyond_the_waiting_limit_are_refused(archive: DeltaArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "MAX_WAITING", 0)

    with pytest.raises(Unavailable, match="too many"):
        await archive.read("a", HistoryRange("a", "e", 1, 10, 10))


async def test_unreadable_table_is_reported_in_health_and_known_files_are_served(scribe: Scribe, archive: DeltaArchive) -> None:
    scribe.archive(run("a", 1, 10))
    assert await offsets(archive, 1, 10) == list(range(1, 11))
    (scribe.root / "_delta_log" / "00000000000000000001.json").write_text("{torn")

    assert await offsets(archive, 1, 10) == list(range(1, 11))
    assert "cannot be read" in archive.health()

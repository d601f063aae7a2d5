"""Conformance suites for `ports.Journal`, `ports.JournalReader` and `ports.ConsumerStore`.

Invariant: they use the ports and the column names only and do not depend on how rows are stored.
"""

import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from ropewalk.core.ring import locate_shard
from ropewalk.model.errors import BadRequest
from ropewalk.model.journal import Recovered, Row, RowKind, ShardMark, StreamTip
from ropewalk.ports import ConsumerStore, Journal, JournalReader

ALL = 1 << 40
EVER = 1e12

MIXED = (
    Row(RowKind.CONNECTED, "sid", 1000.0, sid="sid", detail='{"ids":"me"}'),
    Row(RowKind.PUBLISH, "a", 1001.0, "a", "e1", 1, b'{"n":1}', uid="u", exclude_socket="s", broadcast_type="t"),
    Row(RowKind.PUBLISH, "b", 1002.25, "b", "e2", 1, b"", producer="app", sequence=5 << 32 | 7),
    Row(RowKind.PUBLISH, "ключ", 1002.000001, "ключ", "e3", 1, bytes(range(256))),
    Row(RowKind.PUBLISH, "a", 1003.5, "a", "e1", 2, b"x" * 100_000),
    Row(RowKind.JOINED, "sid", 1004.0, "a", sid="sid", detail="{}"),
)


class KeptJournal(Journal, JournalReader, ConsumerStore, Protocol):
    def open(self, horizon: float) -> Recovered: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class JournalRig:
    """A suite's hook. The same directory given again is the same journal, opened after it was stopped."""

    def make(self, directory: Path) -> KeptJournal:
        raise NotImplementedError("return a journal in this directory, not opened")

    @asynccontextmanager
    async def running(self, directory: Path) -> AsyncIterator[tuple[KeptJournal, Recovered]]:
        journal = self.make(directory)
        found = journal.open(EVER)
        recovered = Recovered(tips=list(found.tips), rows=list(found.rows), producers=found.producers, newest=found.newest)
        await journal.start()
        try:
            yield journal, recovered
        finally:
            await journal.stop()


class JournalConformance(JournalRig):
    """For every journal."""

    async def test_running_journal_is_healthy(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (journal, _):
            await journal.write(MIXED)
            assert journal.health() == ""

    async def test_empty_journal_has_no_rows_consumers_or_unknown_shards(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (journal, _):
            await journal.write([])
            journal.write_nowait([])
            assert sum(span.end - span.first for span in journal.spans()) == 0
            assert journal.consumers() == []
            assert not await journal.remove("unknown")
            with pytest.raises(BadRequest):
                await _table(journal, 1_000_000, 0, 0)


class KeepingConformance(JournalConformance):
    """For journals that store rows."""

    async def test_new_journal_recovers_nothing(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (journal, recovered):
            assert recovered == Recovered(tips=[], rows=[])
            for span in journal.spans():
                assert await _rows(journal, span.shard, span.first, span.end) == {}

    async def test_rows_have_dense_positions_per_shard_in_write_order(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (journal, _):
            await journal.write(MIXED[:2])
            journal.write_nowait(MIXED[2:4])
            await journal.write(MIXED[4:])
        async with self.running(tmp_path) as (journal, _):
            assert await everything(journal) == _placed(journal, MIXED)

    async def test_restart_recovers_tips_rows_and_producers(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (journal, _):
            await journal.write(MIXED)
        async with self.running(tmp_path) as (journal, recovered):
            before = journal.spans()
            assert sorted(recovered.tips, key=lambda tip: tip.stream) == [
                StreamTip("a", "e1", 2, 1003.5),
                StreamTip("b", "e2", 1, 1002.25),
                StreamTip("ключ", "e3", 1, 1002.000001),
            ]
            assert sorted(map(repr, recovered.rows)) == sorted(map(repr, MIXED))
            assert recovered.producers == {("app", locate_shard("b", _shards(journal))): 5 << 32 | 7}
            assert recovered.newest == 1004.0
            await journal.write([Row(RowKind.PUBLISH, "a", 1005.0, "a", "e1", 3, b"3")])
        async with self.running(tmp_path) as (journal, _):
            after = journal.spans()
            assert [span.epoch for span in after] == [span.epoch for span in before]
            assert sum(span.end for span in after) == sum(span.end for span in before) + 1

    async def test_limited_reads_return_the_complete_range(self, tmp_path: Path) -> None:
        rows = [Row(RowKind.PUBLISH, "a", 1000.0 + n, "a", "e", n + 1, b"x" * 500) for n in range(60)]
        for at in range(0, 60, 20):
            async with self.running(tmp_path) as (journal, _):
                await journal.write(rows[at : at + 20])
        async with self.running(tmp_path) as (journal, _):
            span = next(span for span in journal.spans() if span.end > span.first)
            found: dict[int, Row] = {}
            answers = 0
            while len(found) < 60:
                piece = await _rows(journal, span.shard, span.first + len(found), span.end, max_bytes=20_000)
                assert piece, "a response has at least one batch"
                found.update(piece)
                answers += 1
            assert answers > 1
            assert found == {span.first + n: row for n, row in enumerate(rows)}

    async def test_position_outside_the_journal_is_rejected(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (journal, _):
            await journal.write(MIXED)
        async with self.running(tmp_path) as (journal, _):
            for span in journal.spans():
                for first, end in (
                    (span.end, span.end + 1),
                    (span.end + 1, span.end + 1),
                    (-1, span.end),
                    (span.end, span.end - 1),
                ):
                    with pytest.raises(BadRequest):
                        await _table(journal, span.shard, first, end)

    async def test_archived_end_is_that_of_the_last_report(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (journal, _):
            await journal.write(MIXED)
            span = next(span for span in journal.spans())
            journal.mark_archived({span.shard: 2})
            journal.mark_archived({span.shard: 1})
            assert journal.archived_ends() == {span.shard: 1}
            with pytest.raises(BadRequest):
                journal.mark_archived({1_000_000: 1})

    async def test_consumer_only_moves_forward_and_survives_a_restart(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (journal, _):
            assert (await journal.pin("b", {0: ShardMark("e", 3)})).marks == {0: ShardMark("e", 3)}
            assert (await journal.pin("b", {0: ShardMark("e", 9), 1: ShardMark("f", 1)})).marks[0].position == 3
            assert (await journal.move("b", {0: ShardMark("e", 5), 1: ShardMark("f", 0)})).marks == {
                0: ShardMark("e", 5),
                1: ShardMark("f", 1),
            }
            await journal.move("a", {0: ShardMark("e", 0)})
            await journal.pin("c", {0: ShardMark("e", 0)})
            assert await journal.remove("c")
            assert not await journal.remove("c")
            before = journal.consumers()
            assert [consumer.name for consumer in before] == ["a", "b"]
        async with self.running(tmp_path) as (journal, _):
            assert journal.consumers() == before

    async def test_gauges_count_the_rows(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (journal, _):
            await journal.write(MIXED)
        async with self.running(tmp_path) as (journal, _):
            gauges = journal.gauges()
            assert gauges["journal_rows"] == len(MIXED)
            assert gauges["journal_bytes"] > 100_000


class AcknowledgingConformance(KeepingConformance):
    """For journals that are waited for: what was acknowledged can be read."""

    async def test_rows_can_be_read_as_soon_as_they_are_acknowledged(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (journal, _):
            assert not journal.instant
            for count in range(1, len(MIXED) + 1):
                await journal.write(MIXED[count - 1 : count])
                assert await everything(journal) == _placed(journal, MIXED[:count])


async def everything(journal: JournalReader) -> dict[int, dict[int, Row]]:
    """Rows by shard and position; shards without any are left out."""
    found = {}
    for span in journal.spans():
        found[span.shard] = await _rows(journal, span.shard, span.first, span.end)
    return {shard: rows for shard, rows in found.items() if rows}


def _shards(journal: JournalReader) -> int:
    return 1 + max(span.shard for span in journal.spans())


def _placed(journal: JournalReader, rows: Sequence[Row]) -> dict[int, dict[int, Row]]:
    firsts = {span.shard: span.first for span in journal.spans()}
    placed: dict[int, dict[int, Row]] = {}
    for row in rows:
        shard = locate_shard(row.key, len(firsts))
        there = placed.setdefault(shard, {})
        there[firsts[shard] + len(there)] = row
    return placed


async def _table(journal: JournalReader, shard: int, first: int, end: int, max_bytes: int = ALL) -> list[dict[str, object]]:
    import pyarrow as pa  # only these suites need it, and only those who keep a journal run them

    data = b"".join([piece async for piece in journal.read(shard, first, end, max_bytes)])
    table = pa.ipc.open_stream(io.BytesIO(data)).read_all()
    columns = table.set_column(table.schema.get_field_index("timestamp"), "timestamp", table["timestamp"].cast(pa.int64()))
    found: list[dict[str, object]] = columns.to_pylist()
    return found


async def _rows(journal: JournalReader, shard: int, first: int, end: int, max_bytes: int = ALL) -> dict[int, Row]:
    """Cut to [first, end), as readers do."""
    cells = await _table(journal, shard, first, end, max_bytes)
    return {position: row for position, row in map(_row, cells) if first <= position < end}


def _row(cells: dict[str, object]) -> tuple[int, Row]:
    """What a row does not have is null, but for the value of a publication, which may be empty."""
    given = {name: cell for name, cell in cells.items() if cell is not None}
    assert "" not in given.values(), "absent values are null"
    position, micros, kind = given.pop("position"), given.pop("timestamp"), RowKind(str(given.pop("event")))
    assert isinstance(position, int)
    assert isinstance(micros, int)
    assert ("value" in given) == (kind is RowKind.PUBLISH)
    return position, Row(kind, timestamp=micros / 1_000_000, **given)  # type: ignore[arg-type]

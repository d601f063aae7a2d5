"""A killed journal whose files tests damage, and everything that was written to it."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ropewalk.adapters.journals.arrow.maintenance import JournalReport, verify
from ropewalk.adapters.journals.arrow.repair import ArchivedRows, Repaired, repair
from ropewalk.model.journal import Row
from ropewalk.testing.clock import ManualClock
from tests.journals import QuickDisk, as_if_killed, publication, read_all, running, session, table

WRITES = 60
"""How many groups the journal has. The clock advances one second after each."""


def check_progress(done: int, total: int) -> None:
    assert 0 <= done <= total


class FakeArchive:
    """Archived rows by shard and position."""

    def __init__(self, tables: dict[int, pa.Table]) -> None:
        self.tables = tables

    def rows(self, shard: int, first: int, end: int) -> Iterable[Any]:
        position = self.tables[shard]["position"]
        yield self.tables[shard].filter(pc.and_(pc.greater_equal(position, first), pc.less(position, end)))

    def up_to(self, end: int) -> "FakeArchive":
        return FakeArchive({shard: rows.filter(pc.less(rows["position"], end)) for shard, rows in self.tables.items()})


class KilledJournal:
    """A journal of three shards after a kill. Each segment holds a few batches of three rows."""

    def __init__(self, directory: Path, rows: dict[int, dict[int, Row]], archive: FakeArchive) -> None:
        self.directory = directory
        self.rows = rows
        self.archive = archive

    def copy(self, directory: Path) -> "KilledJournal":
        return KilledJournal(Path(shutil.copytree(self.directory, directory)), self.rows, self.archive)

    def segments(self, shard: int = 1) -> list[Path]:
        return sorted((self.directory / "journal" / f"shard={shard:02}").glob("*.arrow"))

    def files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.directory.rglob("*") if path.is_file() and path.name != "lock"}

    def flip_bit(self, path: Path, position: int, shard: int = 1) -> None:
        """Damages the batch that holds this position."""
        data = bytearray(path.read_bytes())
        data[data.index(self.rows[shard][position].value)] ^= 1
        path.write_bytes(data)

    def damage(self) -> set[int]:
        """Damages a batch, removes a segment and truncates the last one. Returns the lost positions of shard 1."""
        first, second, third, fourth, *_, last = self.segments()
        middle = (int(first.stem) + int(second.stem)) // 2
        while self.rows[1][middle].value == b"":
            middle += 1
        self.flip_bit(first, middle)
        third.unlink()
        size = last.stat().st_size
        with last.open("r+b") as file:
            file.truncate(size - 10)
        lost = {at for _, begin, end in holes(self.verify()) for at in range(begin, end)}
        assert {middle, *range(int(third.stem), int(fourth.stem)), max(self.rows[1])} <= lost
        assert len(lost) < 3 * len(self.rows[1]) / 4
        return lost

    def verify(self) -> JournalReport:
        return verify(self.directory, check_progress)

    def repair(self, archived: ArchivedRows | None) -> Repaired:
        return repair(self.directory, archived, check_progress, QuickDisk())


def holes(report: JournalReport) -> list[tuple[int, int, int]]:
    return [(hole.shard, hole.first, hole.end) for hole in report.holes]


async def write_killed_journal(directory: Path) -> KilledJournal:
    clock = ManualClock()
    async with running(directory / "alive", clock, segment_size=12_000) as (journal, _):
        for number in range(WRITES):
            values = [b"%d of %d" % (number, each) for each in range(9)]
            rows = [publication(f"stream {each}", number + 1, value, clock.now) for each, value in enumerate(values)]
            await journal.write([*rows, session(f"sid {number}", clock.now)])
            clock.advance(1)
        await journal.sweep()
        everything = await read_all(journal)
        tables = {span.shard: await table(journal, span.shard, span.first, span.end) for span in journal.spans()}
        return KilledJournal(as_if_killed(directory / "alive", directory / "killed"), everything, FakeArchive(tables))

"""Verification and repair: what is lost is found to the position, and what the archive has comes back to its place."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ropewalk.adapters.journals.arrow.backup import JournalCopy
from ropewalk.adapters.journals.arrow.disk import Disk
from ropewalk.adapters.journals.arrow.maintenance import JournalReport, verify
from ropewalk.adapters.journals.arrow.records import NAMES
from ropewalk.adapters.journals.arrow.repair import ArchivedRows, Repaired, repair
from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import GENERATION_BITS, Row, ShardSpan, holes_of
from ropewalk.testing.clock import ManualClock
from tests.journals import QuickDisk, as_if_killed, publication, read_all, running, session, table

ROWS = 120


def quiet(done: int, total: int) -> None:
    assert 0 <= done <= total


class FakeArchive:
    """Rows by shard and position, as far as the archive has come."""

    def __init__(self, tables: dict[int, pa.Table]) -> None:
        self.tables = tables

    def rows(self, shard: int, first: int, end: int) -> Iterable[Any]:
        position = self.tables[shard]["position"]
        yield self.tables[shard].filter(pc.and_(pc.greater_equal(position, first), pc.less(position, end)))

    def up_to(self, end: int) -> "FakeArchive":
        return FakeArchive({shard: rows.filter(pc.less(rows["position"], end)) for shard, rows in self.tables.items()})


class World:
    """A killed journal of three shards, whose segments hold a few batches of three rows, and everything in it."""

    def __init__(self, directory: Path, rows: dict[int, dict[int, Row]], archive: FakeArchive) -> None:
        self.directory = directory
        self.rows = rows
        self.archive = archive

    def segments(self, shard: int = 1) -> list[Path]:
        return sorted((self.directory / "journal" / f"shard={shard:02}").glob("*.arrow"))

    def spoil(self, path: Path, position: int, shard: int = 1) -> None:
        """One bit of the batch that holds this position."""
        data = bytearray(path.read_bytes())
        data[data.index(self.rows[shard][position].value)] ^= 1
        path.write_bytes(data)

    def verify(self) -> JournalReport:
        return verify(self.directory, quiet)

    def repair(self, archived: ArchivedRows | None) -> Repaired:
        return repair(self.directory, archived, quiet, QuickDisk())


@pytest.fixture
async def world(tmp_path: Path) -> World:
    clock = ManualClock()
    async with running(tmp_path / "alive", clock, segment_size=12_000) as (journal, _):
        for number in range(ROWS):
            values = [b"%d of %d" % (number, each) for each in range(9)]
            rows = [publication(f"stream {each}", number + 1, value, clock.now) for each, value in enumerate(values)]
            await journal.write([*rows, session(f"sid {number}", clock.now)])
            clock.advance(1)
        await journal.sweep()
        everything = await read_all(journal)
        tables = {span.shard: await table(journal, span.shard, span.first, span.end) for span in journal.spans()}
        return World(as_if_killed(tmp_path / "alive", tmp_path / "killed"), everything, FakeArchive(tables))


def lost(report: JournalReport) -> list[tuple[int, int, int]]:
    return [(hole.shard, hole.first, hole.end) for hole in report.holes]


def damage(world: World) -> set[int]:
    """A bad batch, a lost segment, and a torn end. Answers the positions of shard 1 that they cost."""
    first, second, third, fourth, *_, last = world.segments()
    middle = (int(first.stem) + int(second.stem)) // 2
    while world.rows[1][middle].value == b"":
        middle += 1
    world.spoil(first, middle)
    third.unlink()
    size = last.stat().st_size
    with last.open("r+b") as file:
        file.truncate(size - 10)
    spoiled = {at for _, begin, end in lost(world.verify()) for at in range(begin, end)}
    assert {middle, *range(int(third.stem), int(fourth.stem)), max(world.rows[1])} <= spoiled
    assert len(spoiled) < 3 * len(world.rows[1]) / 4
    return spoiled


async def test_a_whole_journal_is_found_whole_while_it_is_written_to_and_afterwards(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock(), segment_size=20_000) as (journal, _):
        for number in range(1, 200):
            await journal.write([publication(f"stream {each}", number) for each in range(9)])
            if number % 40 == 0:
                report = verify(tmp_path, quiet)
                assert (report.whole, report.running, report.remarks) == (True, True, [])
                assert sum(shard.rows for shard in report.shards) == 9 * number
                await journal.sweep()
    report = verify(tmp_path, quiet)
    assert (report.whole, report.running, report.format, len(report.shards)) == (True, False, 2, 3)


async def test_holes_are_told_to_the_position_and_nothing_is_changed(world: World) -> None:
    spoiled = damage(world)
    before = {path: path.read_bytes() for path in world.directory.rglob("*") if path.is_file()}
    report = world.verify()
    assert not report.whole
    assert [shard.hole_rows for shard in report.shards] == [0, len(spoiled), 0]
    assert [shard.rows for shard in report.shards] == [
        len(world.rows[0]),
        len(world.rows[1]) - len(spoiled),
        len(world.rows[2]),
    ]
    assert {path: path.read_bytes() for path in world.directory.rglob("*") if path.is_file()} == before


async def test_what_the_archive_has_comes_back_and_the_journal_goes_on_as_if_nothing_had_happened(world: World) -> None:
    spoiled = damage(world)
    bad = world.segments()[0].read_bytes()
    repaired = world.repair(world.archive.rows)
    assert (repaired.filled_rows, repaired.missing_rows, repaired.rebuilt) == (len(spoiled), 0, False)
    assert world.verify().whole
    assert bad in [Path(path).read_bytes() for path in repaired.kept]
    async with running(world.directory, ManualClock()) as (journal, recovered):
        assert (recovered.reset_shards, recovered.notes) == ((), ())
        assert await read_all(journal) == world.rows
        assert {tip.tip for tip in recovered.tips} == {ROWS}
        await journal.write([publication("stream 0", ROWS + 1)])
    assert world.repair(world.archive.rows) == Repaired(False, 0, 0, [])


async def test_rows_of_a_generation_that_ended_by_the_damage_come_back_too(world: World) -> None:
    spoiled = damage(world)
    async with running(world.directory, ManualClock()) as (journal, recovered):
        assert recovered.reset_shards == (1,)
        await journal.write([publication("stream 0", 1), *(publication(f"stream {each}", 1) for each in range(9))])
        after = await read_all(journal)
    with_holes = world.verify()
    assert sum(shard.hole_rows for shard in with_holes.shards) == len(spoiled)
    world.repair(world.archive.rows)
    assert world.verify().whole
    async with running(world.directory, ManualClock()) as (journal, recovered):
        assert (recovered.reset_shards, recovered.notes) == ((), ())
        found = await read_all(journal)
        assert {at: row for at, row in found[1].items() if at < 1 << GENERATION_BITS} == world.rows[1]
        assert all(found[shard][at] == row for shard, rows in after.items() for at, row in rows.items())
        assert journal.gauges()["journal_holes"] == 0


async def test_of_an_archive_that_ends_in_a_hole_its_part_comes_back(world: World) -> None:
    spoiled = damage(world)
    third = sorted(spoiled)[len(spoiled) // 2]
    repaired = world.repair(world.archive.up_to(third).rows)
    assert repaired.filled_rows == sum(1 for position in spoiled if position < third)
    report = world.verify()
    assert {at for _, first, end in lost(report) for at in range(first, end)} == {at for at in spoiled if at >= third}
    async with running(world.directory, ManualClock()) as (journal, recovered):
        assert recovered.reset_shards == (1,)
        assert sorted((await read_all(journal))[1]) == [at for at in world.rows[1] if at not in spoiled or at < third]


async def test_a_shard_that_is_gone_altogether_comes_back(world: World) -> None:
    for path in (world.directory / "journal" / "shard=01").iterdir():
        path.unlink()
    (world.directory / "journal" / "shard=01").rmdir()
    assert lost(world.verify()) == [(1, 0, len(world.rows[1]))]
    assert world.repair(world.archive.rows).missing_rows == 0
    async with running(world.directory, ManualClock()) as (journal, recovered):
        assert recovered.reset_shards == ()
        assert await read_all(journal) == world.rows


@pytest.mark.parametrize("how", ["first", "all", "directory", "zeroed"])
async def test_a_hole_at_the_beginning_of_a_shard_is_told_after_every_start_and_comes_back(world: World, how: str) -> None:
    first, second, *_ = world.segments()
    end = int(second.stem) if how in ("first", "zeroed") else len(world.rows[1])
    if how == "directory":
        shutil.rmtree(first.parent)
    elif how == "zeroed":
        first.write_bytes(bytes(first.stat().st_size))
    else:
        for path in world.segments() if how == "all" else [first]:
            path.unlink()
    spans: list[ShardSpan] = []
    for start in range(3):
        assert lost(world.verify()) == [(1, 0, end)]
        async with running(world.directory, ManualClock()) as (journal, recovered):
            assert recovered.reset_shards == ((1,) if start == 0 else ())
            assert [f"positions 0 to {end - 1} " in note for note in recovered.notes] == ([True] if start == 0 else [])
            (hole,) = holes_of(journal.spans())
            assert (hole.shard, hole.first, hole.end) == (1, 0, end)
            assert (journal.gauges()["journal_holes"], journal.gauges()["journal_hole_rows"]) == (1, end)
            spans = spans or journal.spans()
            assert journal.spans() == spans
            await journal.sweep()
    copy = JournalCopy(world.directory / "journal", world.directory / "copy" / "journal", quiet, QuickDisk())
    copy.consumers()
    assert copy.rows().hole_rows == end
    assert lost(verify(world.directory / "copy", quiet)) == [(1, 0, end)], "a backup tells it too"
    assert world.repair(world.archive.rows).filled_rows == end
    assert world.verify().whole
    async with running(world.directory, ManualClock()) as (journal, recovered):
        assert (recovered.reset_shards, recovered.notes, holes_of(journal.spans())) == ((), (), [])
        assert (await read_all(journal))[1] == world.rows[1]


async def test_what_retention_removed_is_no_hole_and_a_hole_goes_with_the_rows_behind_it(world: World) -> None:
    first, *_ = world.segments(1)
    first.unlink()
    clock = ManualClock(1_000_000.0 + ROWS)
    options: dict[str, Any] = {"retention": 60.0, "for_archive": False}
    async with running(world.directory, clock, **options) as (journal, _):
        assert [hole.first for hole in holes_of(journal.spans())] == [0]
        await journal.sweep()
        assert all(span.first > 0 for span in journal.spans()), "the test does not test"
        assert holes_of(journal.spans()) == []
        killed = as_if_killed(world.directory, world.directory.with_name("killed again"))
    for directory in (world.directory, killed):
        assert verify(directory, quiet).holes == []
        async with running(directory, clock, **options) as (journal, recovered):
            assert (recovered.reset_shards, recovered.notes, holes_of(journal.spans())) == ((), (), [])


async def test_a_generation_of_which_nothing_is_left_is_a_hole_until_retention_takes_younger_rows(world: World) -> None:
    shutil.rmtree(world.segments()[0].parent)
    clock = ManualClock(1_000_000.0 + ROWS)
    options: dict[str, Any] = {"retention": 600.0, "for_archive": False, "segment_size": 4000}
    async with running(world.directory, clock, **options) as (journal, _):
        for offset in range(1, 40):
            await journal.write([publication(f"stream {each}", offset, at=clock()) for each in range(9)])
        await journal.sweep()
        assert [hole.shard for hole in holes_of(journal.spans())] == [1]
        clock.advance(1000)
        await journal.sweep()
        assert holes_of(journal.spans()) == []
        lost_end = len(world.rows[1])
        assert (lost_end, lost_end) in [(span.first, span.end) for span in journal.spans() if span.shard == 1]
    assert world.verify().holes == []


@pytest.mark.parametrize("number", [0, 1, -1], ids=["first", "between", "last"])
async def test_a_damaged_arrow_header_is_told_and_written_anew_without_an_archive(world: World, number: int) -> None:
    path = world.segments()[number]
    whole = path.read_bytes()
    spoiled = bytes(4) + whole[4:]
    path.write_bytes(spoiled)
    for _ in range(2):
        report = world.verify()
        assert (report.whole, report.holes, len(report.problems)) == (False, [], 1)
        assert f"shard=01/{path.name}" in report.problems[0]
        async with running(world.directory, ManualClock()) as (journal, recovered):
            assert recovered.reset_shards == ()
            assert await read_all(journal) == world.rows
    repaired = world.repair(None)
    assert (repaired.headers, repaired.filled_rows, repaired.missing_rows) == (1, 0, 0)
    assert [Path(kept).read_bytes() for kept in repaired.kept] == [spoiled]
    assert path.read_bytes() == whole
    with pa.OSFile(str(path)) as file:
        assert pa.ipc.open_stream(file).read_all().num_rows > 0
    assert world.verify().whole
    assert world.repair(None) == Repaired(False, 0, 0, [])


@pytest.mark.parametrize("number", [10**20 - 1, 1 << 63, 99_999, 1, 7 << GENERATION_BITS, (1 << GENERATION_BITS) + 5])
@pytest.mark.parametrize("content", ["one byte", "a copy of another segment"])
@pytest.mark.parametrize("record", ["recorded", "rebuilt"])
async def test_a_stray_file_is_named_and_costs_nothing(world: World, number: int, content: str, record: str) -> None:
    stray = world.segments()[0].with_name(f"{number:020}.arrow")
    shutil.copy(world.segments(0)[0], stray) if content == "a copy of another segment" else stray.write_bytes(b"x")
    data = stray.read_bytes()
    if record == "rebuilt":
        for name in NAMES:
            (world.directory / "journal" / name).unlink()
        assert world.repair(None).rebuilt
    report = world.verify()
    assert (report.whole, [str(stray) in remark and "stray" in remark for remark in report.remarks]) == (True, [True])
    for _ in range(2):
        async with running(world.directory, ManualClock()) as (journal, recovered):
            assert recovered.reset_shards == () or record == "rebuilt"
            assert [note for note in recovered.notes if str(stray) in note] != []
            assert holes_of(journal.spans()) == []
            assert await read_all(journal) == world.rows
    assert stray.read_bytes() == data


@pytest.mark.parametrize("column", ["key", "value"])
async def test_the_archive_of_another_journal_is_refused_and_nothing_is_changed(world: World, column: str) -> None:
    damage(world)
    rows = world.archive.tables[1]
    other = pa.array([b"another"] * len(rows) if column == "value" else ["another key"] * len(rows), rows[column].type)
    foreign = FakeArchive({1: rows.set_column(rows.schema.get_field_index(column), column, other)})
    before = {path: path.read_bytes() for path in world.directory.rglob("*") if path.is_file()}
    with pytest.raises(UserMistake, match="another journal"):
        world.repair(foreign.rows)
    after = {path: path.read_bytes() for path in world.directory.rglob("*") if path.is_file() and path.name != "lock"}
    assert after == {path: data for path, data in before.items() if path.name != "lock"}


async def test_rows_that_stand_for_a_gap_in_the_archive_fill_nothing(world: World) -> None:
    spoiled = damage(world)
    rows = world.archive.tables[1]
    gaps = pa.array(["gap"] * len(rows), rows["event"].type)
    archive = FakeArchive({1: rows.set_column(rows.schema.get_field_index("event"), "event", gaps)})
    assert world.repair(archive.rows) == Repaired(False, 0, len(spoiled), [])


async def test_a_lost_record_is_rebuilt_when_it_is_asked_for_and_no_row_is_lost_by_that(world: World) -> None:
    for name in NAMES:
        (world.directory / "journal" / name).unlink()
    report = world.verify()
    assert (report.format, report.whole, report.holes) == (0, False, [])
    assert "record of itself" in report.problems[0]
    assert world.repair(None) == Repaired(True, 0, 0, [])
    async with running(world.directory, ManualClock()) as (journal, recovered):
        assert recovered.reset_shards == (0, 1, 2)
        assert [note[:33] for note in recovered.notes] == ["every stream begins a new epoch: "]
        assert await read_all(journal) == world.rows


async def test_a_journal_in_use_is_not_repaired(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock()) as (journal, _):
        await journal.write([publication("a", 1)])
        with pytest.raises(UserMistake, match="another server uses this journal"):
            repair(tmp_path, None, quiet, Disk())


async def test_damage_that_costs_no_rows_is_told_as_what_it_is(world: World) -> None:
    journal = world.directory / "journal"
    (journal / NAMES[1]).write_bytes(b"")
    index, state = sorted(journal.rglob("*.idx"))[0], sorted(journal.rglob("*.state"))[0]
    for path in (index, state):
        path.write_bytes(path.read_bytes()[:-1])
    (journal / "consumers" / "0.json").write_bytes(b"{}")
    report = world.verify()
    assert report.holes == []
    assert report.problems == ["the consumer in 0.json cannot be read"]
    assert [remark.partition(" is damaged")[1] for remark in report.remarks] == [" is damaged"] * 3


async def test_a_repair_tells_of_states_that_are_lost_and_the_next_start_makes_them_anew(tmp_path: Path) -> None:
    clock = ManualClock()
    options: dict[str, Any] = {"shards": 1, "segment_size": 4000, "retention": 100.0, "for_archive": False}
    async with running(tmp_path, clock, **options) as (journal, _):
        for offset in range(1, 31):
            await journal.write([publication("busy", offset, at=clock())])
            clock.advance(10)
        await journal.sweep()
        assert journal.spans()[0].first > 1
    assert repair(tmp_path, None, quiet, QuickDisk()).stateless == ()
    for path in tmp_path.rglob("*.state"):
        path.unlink()
    assert "state of its producers" in verify(tmp_path, quiet).problems[0]
    assert repair(tmp_path, None, quiet, QuickDisk()).stateless == (0,)
    async with running(tmp_path, clock, **options):
        pass
    assert verify(tmp_path, quiet).whole


async def test_rows_that_are_back_from_the_first_one_on_tell_the_state_again(world: World) -> None:
    for path in (*world.segments()[:1], *(world.directory / "journal" / "shard=01").glob("*.state")):
        path.unlink()
    assert world.repair(None).stateless == (1,)
    assert world.repair(world.archive.rows).stateless == ()


def test_without_a_journal_there_is_nothing_to_verify(tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match="there is no journal"):
        verify(tmp_path, quiet)

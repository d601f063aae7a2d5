"""The index of archive files: damaged files are unavailable, all others are served. Its cache is bounded by weight."""

import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ropewalk.adapters.archives.delta import DeltaArchive
from ropewalk.adapters.archives.parquet_index import LruCache
from ropewalk.model.errors import Unavailable
from ropewalk.model.history import HistoryRange
from ropewalk.model.messages import Registered
from tests.archive_writer import Scribe, flip_payload, message

FOREVER = 10**9

Damage = Callable[[Path], object]


def run(stream: str, first: int, last: int) -> list[Registered]:
    return [message(stream, offset) for offset in range(first, last + 1)]


@pytest.fixture
def scribe(tmp_path: Path) -> Scribe:
    return Scribe(tmp_path / "archive", shards=1, row_group=8)


@pytest.fixture
async def archive(scribe: Scribe) -> AsyncIterator[DeltaArchive]:
    archive = DeltaArchive(str(scribe.root), scribe.shards, lambda: 0.0, refresh=0.0)
    yield archive
    await archive.stop()


def find_file(scribe: Scribe, batch: int) -> Path:
    [path] = scribe.root.rglob(f"query-{batch}-*.parquet")
    return path


def renamed(scribe: Scribe) -> Path:
    """Renames the only file of the table, so that its name has no digest."""
    path = find_file(scribe, 0)
    [log] = (scribe.root / "_delta_log").glob("*.json")
    log.write_text(log.read_text().replace(path.name, "part-0.parquet"))
    return path.rename(path.with_name("part-0.parquet"))


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def halved(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def scribbled(path: Path) -> None:
    path.write_bytes(b"not a file of the archive" * 100)


def other_columns(path: Path) -> None:
    pq.write_table(pq.read_table(path, partitioning=None).select(["position", "offset"]), path)


async def served(archive: DeltaArchive, first: int, last: int) -> list[int]:
    return [each.offset for each in (await archive.read("a", HistoryRange("a", "e", first, last, FOREVER))).messages]


@pytest.mark.parametrize("damage", [emptied, halved, scribbled, other_columns, flip_payload])
@pytest.mark.parametrize("known", [False, True], ids=["not opened before", "opened before"])
async def test_damaged_file_is_unavailable_and_others_are_served(
    scribe: Scribe, archive: DeltaArchive, damage: Damage, known: bool
) -> None:
    scribe.archive(run("a", 1, 30))
    scribe.archive(run("a", 31, 60))
    if known:
        assert await served(archive, 1, 60) == list(range(1, 61))
    damage(find_file(scribe, 0))

    with pytest.raises(Unavailable, match=find_file(scribe, 0).name):
        await archive.read("a", HistoryRange("a", "e", 1, 60, FOREVER))

    assert await served(archive, 31, 60) == list(range(31, 61))


async def test_damaged_file_is_logged_once(scribe: Scribe, archive: DeltaArchive, caplog: pytest.LogCaptureFixture) -> None:
    for first in (1, 31):
        scribe.archive(run("a", first, first + 29))
    for batch in (0, 1):
        halved(find_file(scribe, batch))
    with caplog.at_level(logging.DEBUG, "ropewalk.archive"):
        for first in (1, 31) * 3:
            with pytest.raises(Unavailable):
                await archive.read("a", HistoryRange("a", "e", first, first + 29, FOREVER))
    assert [Path(vars(record)["file"]).name for record in caplog.records] == [find_file(scribe, batch).name for batch in (0, 1)]


@pytest.mark.parametrize("damage", [emptied, halved, flip_payload])
async def test_restored_file_is_served_again(scribe: Scribe, archive: DeltaArchive, damage: Damage) -> None:
    scribe.archive([*run("a", 1, 30), *run("b", 1, 30)])
    path = find_file(scribe, 0)
    good = path.read_bytes()
    damage(path)
    with pytest.raises(Unavailable):
        await archive.read("a", HistoryRange("a", "e", 1, 30, FOREVER))

    path.write_bytes(good)

    assert (await archive.read("a", HistoryRange("a", "e", 1, 30, FOREVER))).messages == tuple(run("a", 1, 30))


async def test_unchanged_file_is_checked_once(scribe: Scribe, archive: DeltaArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    scribe.archive(run("a", 1, 30))
    await served(archive, 1, 30)
    monkeypatch.setattr(
        "ropewalk.adapters.archives.parquet_index.is_unchanged", lambda name, file: pytest.fail("checked again")
    )
    assert await served(archive, 5, 20) == list(range(5, 21))


async def test_file_without_a_digest_is_served(scribe: Scribe, archive: DeltaArchive) -> None:
    scribe.archive(run("a", 1, 30))
    renamed(scribe)
    assert await served(archive, 1, 30) == list(range(1, 31))


@pytest.mark.parametrize("digest", [True, False], ids=["with a digest", "without a digest"])
async def test_file_with_a_new_modification_time_is_served(scribe: Scribe, archive: DeltaArchive, digest: bool) -> None:
    scribe.archive([*run("a", 1, 30), *run("b", 1, 30)])
    path = find_file(scribe, 0) if digest else renamed(scribe)
    for _ in range(3):
        os.utime(path)
        assert await served(archive, 1, 30) == list(range(1, 31))


async def test_replaced_file_without_a_digest_is_read_again(scribe: Scribe, archive: DeltaArchive) -> None:
    """The rows of its streams are at other places."""
    scribe.archive([*run("a", 1, 7), *run("b", 1, 30)])
    path = renamed(scribe)
    assert (await archive.read("b", HistoryRange("b", "e", 1, 30, FOREVER))).messages == tuple(run("b", 1, 30))
    pq.write_table(pq.read_table(path, partitioning=None).slice(1), path, row_group_size=8)
    assert (await archive.read("b", HistoryRange("b", "e", 1, 30, FOREVER))).messages == tuple(run("b", 1, 30))


async def test_unsorted_file_of_another_writer_is_served_in_order(scribe: Scribe, archive: DeltaArchive) -> None:
    scribe.archive([*run("a", 1, 30), *run("b", 1, 30)])
    path = renamed(scribe)
    rows = pq.read_table(path, partitioning=None)
    pq.write_table(rows.take(list(range(len(rows)))[::-1]), path)
    for limit in (1, 10, 29, 30):
        piece = await archive.read("a", HistoryRange("a", "e", 1, 30, limit))
        assert (piece.messages, piece.more) == (tuple(run("a", 1, limit)), limit < 30)


async def test_file_replaced_while_it_is_read_is_unavailable(
    scribe: Scribe, archive: DeltaArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its digest was compared. The other file has the same layout, so reading it raises no error."""
    forger = Scribe(tmp_path / "forged", shards=1, row_group=8)
    for writer, letter in ((scribe, b"1"), (forger, b"2")):
        writer.archive([message("a", offset, payload=letter * 100) for offset in range(1, 9)])
    path, forged = find_file(scribe, 0), find_file(forger, 0)
    assert forged.stat().st_size == path.stat().st_size
    assert await served(archive, 1, 8) == list(range(1, 9))
    read = pq.ParquetFile.read_row_group

    def forge(self: pq.ParquetFile, *given: object, **options: object) -> pa.Table:
        path.write_bytes(forged.read_bytes())
        return read(self, *given, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", forge)
    with pytest.raises(Unavailable, match=path.name):
        await archive.read("a", HistoryRange("a", "e", 1, 8, FOREVER))


def not_text(rows: pa.Table) -> pa.Table:
    names = pa.array([b"a\xff"] * len(rows)).view(pa.string())
    return rows.set_column(rows.schema.get_field_index("epoch"), "epoch", [names])


def timeless(rows: pa.Table) -> pa.Table:
    return rows.set_column(
        rows.schema.get_field_index("timestamp"), "timestamp", [pa.nulls(len(rows), pa.timestamp("us", "UTC"))]
    )


def without_values(rows: pa.Table) -> pa.Table:
    return rows.drop_columns("value")


@pytest.mark.parametrize("change", [not_text, timeless, without_values])
async def test_file_without_a_digest_and_with_invalid_rows_is_unavailable(
    scribe: Scribe, archive: DeltaArchive, change: Callable[[pa.Table], pa.Table]
) -> None:
    scribe.archive([*run("a", 1, 30), *run("b", 1, 30)])
    path = renamed(scribe)
    pq.write_table(change(pq.read_table(path, partitioning=None)), path)
    with pytest.raises(Unavailable, match=path.name):
        await archive.read("a", HistoryRange("a", "e", 1, 30, FOREVER))


# --- Cache -----------------------------------------------------------------------------------------------------------


def never() -> str:
    raise AssertionError("it was known")


def kept(text: str) -> Callable[[], str]:
    return lambda: text


def test_cached_value_is_not_loaded_again() -> None:
    memory: LruCache[str] = LruCache(10)
    assert memory.get("a", kept("x")) == "x"
    assert memory.get("a", never) == "x"


def test_cache_evicts_the_least_recently_used_values() -> None:
    memory: LruCache[str] = LruCache(10, weigh=len)
    for name in ("a", "b", "c"):
        memory.get(name, kept(name * 3))
    memory.get("a", never)
    memory.get("d", kept("dddd"))
    assert memory.get("a", never) == "aaa"
    assert memory.get("c", never) == "ccc"
    assert memory.get("b", kept("again")) == "again"


def test_value_larger_than_the_cache_is_returned_and_not_cached() -> None:
    memory: LruCache[str] = LruCache(3, weigh=len)
    assert memory.get("a", kept("xxxx")) == "xxxx"
    assert memory.get("a", kept("yyy")) == "yyy"
    assert memory.get("a", never) == "yyy"

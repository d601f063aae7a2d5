"""The journal's format: an older one is migrated at the start, a newer one is refused."""

import json
import shutil
from pathlib import Path
from zlib import crc32

import pytest

from ropewalk.adapters.journals.arrow.maintenance import verify
from ropewalk.adapters.journals.arrow.records import FORMAT, NAMES
from ropewalk.adapters.journals.arrow.repair import repair
from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import GENERATION_BITS, ShardMark, ShardSpan
from ropewalk.testing.clock import ManualClock
from tests.journals import EVER, as_if_killed, made, publication, read_all, running

OLDEST = Path(__file__).parents[4] / "fixtures" / "journal_format_1"
"""Written by a version without format numbers and killed. It has two shards; the second has lost its position 3."""

SPANS = [
    ShardSpan(0, "wf5LzAeE", 0, 48),
    ShardSpan(1, "PqoABN7F", 0, 3),
    ShardSpan(1, "PqoABN7F", 4, 4),
    ShardSpan(1, "gYJwy-vG", 1 << GENERATION_BITS, 1 << GENERATION_BITS),
]


def record(directory: Path, name: str = NAMES[0]) -> dict[str, object]:
    found: dict[str, object] = json.loads((directory / "journal" / name).read_bytes().split(b"\n")[0])
    return found


def write_record(directory: Path, name: str, **changed: object) -> None:
    body = json.dumps({**record(directory, name), **changed}).encode()
    (directory / "journal" / name).write_bytes(b"%s\n%08x\n" % (body, crc32(body)))


async def test_journal_without_a_format_number_is_migrated_with_all_rows(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(OLDEST, tmp_path / "old"))
    assert "format" not in record(directory)
    async with running(directory, ManualClock()) as (journal, recovered):
        assert (recovered.reset_shards, recovered.notes, recovered.cut_bytes) == ((), (), 0)
        assert journal.spans() == SPANS
        assert {tip.stream: (tip.epoch, tip.tip) for tip in recovered.tips} == {
            f"stream {number}": ("epoch", 11) for number in range(4)
        }
        assert recovered.producers == {("app", 0): 11}
        assert [(consumer.name, consumer.marks) for consumer in journal.consumers()] == [
            ("reader", {0: ShardMark("wf5LzAeE", 3)})
        ]
        rows = await read_all(journal)
        assert [sorted(rows[shard]) for shard in (0, 1)] == [[*range(48)], [0, 1, 2]]
        assert [record(directory, name)["format"] for name in NAMES] == [FORMAT, FORMAT]
        await journal.write([publication("stream 0", 12)])
    async with running(directory, ManualClock()) as (journal, recovered):
        assert recovered.reset_shards == ()
        assert journal.spans() == [ShardSpan(0, "wf5LzAeE", 0, 49), *SPANS[1:]]


async def test_migration_interrupted_between_the_two_records_is_finished(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(OLDEST, tmp_path / "old"))
    async with running(directory, ManualClock()):
        copy = as_if_killed(directory, tmp_path / "half")
    shutil.copy(OLDEST / "journal" / NAMES[1], copy / "journal" / NAMES[1])
    async with running(copy, ManualClock()) as (journal, recovered):
        assert recovered.reset_shards == ()
        assert journal.spans() == SPANS


async def test_newer_format_is_refused_and_not_changed(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock()) as (journal, _):
        await journal.write([publication("a", 1)])
    for name in NAMES:
        write_record(tmp_path, name, format=FORMAT + 1, lives="of an unknown shape")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for attempt in (
        lambda: made(tmp_path, ManualClock()).open(EVER),
        lambda: verify(tmp_path, lambda _, __: None),
        lambda: repair(tmp_path, None, lambda _, __: None),
    ):
        with pytest.raises(
            UserMistake, match=f"has format {FORMAT + 1}, and this version of Ropewalk knows formats up to {FORMAT}"
        ):
            attempt()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


async def test_record_with_a_valid_checksum_and_invalid_content_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock()) as (journal, _):
        await journal.write([publication("a", 1)])
    for name in NAMES:
        write_record(tmp_path, name, lives="none")
    with pytest.raises(UserMistake, match="cannot be read"):
        made(tmp_path, ManualClock()).open(EVER)

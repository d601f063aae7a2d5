"""The files of transactions: recovery after a crash, and copies for a backup."""

import asyncio
import shutil
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from ropewalk.adapters.staging.files import STATE, FileStaging, copy_staging, damaged_staging
from ropewalk.model.errors import Unavailable
from ropewalk.model.transactions import AppRecord, Decision, StagedPiece

DATA = b"some rows"
PIECE = StagedPiece(0, 0, 0, len(DATA), crc32(DATA))


def files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


async def staged(directory: Path) -> FileStaging:
    staging = FileStaging(directory)
    await staging.load()
    await staging.put("app", 1, PIECE, DATA)
    return staging


def piece_file(directory: Path) -> Path:
    return next(path for path in files(directory) if path.suffix == ".rows")


@pytest.mark.parametrize("damage", [b"", DATA[:-1], b"S" + DATA[1:], DATA + b"!"])
async def test_torn_or_changed_piece_cannot_be_decided(tmp_path: Path, damage: bytes) -> None:
    staging = await staged(tmp_path)
    piece_file(tmp_path).write_bytes(damage)
    assert await staging.decide("app", None, Decision(1, (PIECE,))) == [PIECE]


async def test_changed_piece_of_a_decided_batch_is_unavailable(tmp_path: Path) -> None:
    staging = await staged(tmp_path)
    await staging.decide("app", None, Decision(1, (PIECE,)))
    piece_file(tmp_path).write_bytes(b"x")
    with pytest.raises(Unavailable, match="damaged"):
        await staging.read("app", 1, PIECE)


async def test_incomplete_piece_is_removed_at_the_next_start(tmp_path: Path) -> None:
    await staged(tmp_path)
    half = piece_file(tmp_path).with_suffix(".3.part")
    half.write_bytes(DATA[:3])
    assert await FileStaging(tmp_path).load() == [AppRecord("app", None, None, {1: [PIECE]})]
    assert not half.exists()


async def test_pieces_of_finished_batches_are_removed_at_the_next_start(tmp_path: Path) -> None:
    staging = await staged(tmp_path)
    await staging.finish("app", 1)
    await staging.put("app", 1, PIECE, DATA)  # a late piece, followed by a crash
    assert await FileStaging(tmp_path).load() == [AppRecord("app", 1)]
    assert [path.name for path in files(tmp_path)] == ["state.json"]


async def test_unreadable_state_prevents_the_start(tmp_path: Path) -> None:
    await staged(tmp_path)
    state = next(path for path in files(tmp_path) if path.name == "state.json")
    state.write_bytes(b'{"app":"app","last"')
    with pytest.raises(Unavailable, match=r"state\.json"):
        await FileStaging(tmp_path).load()


async def test_disk_error_is_reported_as_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unavailable):
        await FileStaging(tmp_path / "file" / "below").load()


# --- Backups ---------------------------------------------------------------------------------------------------------

BODIES = [b"rows %d" % number for number in range(3)]
PIECES = [StagedPiece(0, 0, number, len(body), crc32(body)) for number, body in enumerate(BODIES)]


async def stage_batches(root: Path, decided: bool = True) -> FileStaging:
    """An application with batch 4 finished and batch 5 staged."""
    staging = FileStaging(root)
    await staging.load()
    await staging.finish("app", 4)
    for piece, body in zip(PIECES, BODIES, strict=True):
        await staging.put("app", 5, piece, body)
    if decided:
        await staging.decide("app", 4, Decision(5, tuple(PIECES)))
    return staging


@pytest.mark.parametrize("decided", [True, False])
async def test_copy_equals_its_source(tmp_path: Path, decided: bool) -> None:
    staging = await stage_batches(tmp_path / "staging", decided)
    copy_staging(tmp_path / "staging", tmp_path / "copy")
    assert damaged_staging(tmp_path / "copy") == []
    copy = FileStaging(tmp_path / "copy")
    assert await copy.load() == await staging.load()
    assert [await copy.read("app", 5, piece) for piece in PIECES] == BODIES


async def test_application_that_finishes_a_batch_during_the_copy_is_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = await stage_batches(tmp_path / "staging")
    real, loop = shutil.copy, asyncio.get_running_loop()

    def copy(source: Any, target: Any) -> Any:
        done = real(source, target)
        asyncio.run_coroutine_threadsafe(staging.finish("app", 5), loop).result()
        return done

    monkeypatch.setattr(shutil, "copy", copy)
    await asyncio.to_thread(copy_staging, tmp_path / "staging", tmp_path / "copy")
    (record,) = await FileStaging(tmp_path / "copy").load()
    assert (record.last, record.decided, record.staged) == (5, None, {})
    assert list((tmp_path / "copy").rglob("*.rows")) == []


def test_copy_without_transactions_is_empty(tmp_path: Path) -> None:
    copy_staging(tmp_path / "nothing", tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []
    assert damaged_staging(tmp_path / "copy") == []


async def test_damaged_pieces_and_state_are_reported(tmp_path: Path) -> None:
    await stage_batches(tmp_path)
    first, second, _ = sorted(tmp_path.rglob("*.rows"))
    first.write_bytes(b"ROWS 0")
    second.unlink()
    assert damaged_staging(tmp_path) == [
        "piece 0 of part 0 of batch 5 of app is missing or damaged",
        "piece 1 of part 0 of batch 5 of app is missing or damaged",
    ]
    (state,) = tmp_path.rglob(STATE)
    state.write_bytes(b"{")
    (problem,) = damaged_staging(tmp_path)
    assert problem.startswith(f"{state} cannot be read")
    with pytest.raises(Unavailable):
        await FileStaging(tmp_path).load()

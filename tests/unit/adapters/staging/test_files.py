"""What a crash can leave behind in the files of transactions, and what becomes of it."""

from pathlib import Path
from zlib import crc32

import pytest

from ropewalk.adapters.staging.files import FileStaging
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
async def test_a_torn_or_changed_piece_cannot_be_decided(tmp_path: Path, damage: bytes) -> None:
    staging = await staged(tmp_path)
    piece_file(tmp_path).write_bytes(damage)
    assert await staging.decide("app", None, Decision(1, (PIECE,))) == [PIECE]


async def test_a_decided_piece_that_was_changed_is_not_given_out(tmp_path: Path) -> None:
    staging = await staged(tmp_path)
    await staging.decide("app", None, Decision(1, (PIECE,)))
    piece_file(tmp_path).write_bytes(b"x")
    with pytest.raises(Unavailable, match="damaged"):
        await staging.read("app", 1, PIECE)


async def test_half_a_piece_is_swept_out_at_the_next_start(tmp_path: Path) -> None:
    await staged(tmp_path)
    half = piece_file(tmp_path).with_suffix(".3.part")
    half.write_bytes(DATA[:3])
    assert await FileStaging(tmp_path).load() == [AppRecord("app", None, None, {1: [PIECE]})]
    assert not half.exists()


async def test_batches_whose_end_is_known_are_swept_out_at_the_next_start(tmp_path: Path) -> None:
    staging = await staged(tmp_path)
    await staging.finish("app", 1)
    await staging.put("app", 1, PIECE, DATA)  # as a piece that came too late, and then a crash
    assert await FileStaging(tmp_path).load() == [AppRecord("app", 1)]
    assert [path.name for path in files(tmp_path)] == ["state.json"]


async def test_an_unreadable_state_stops_the_start_instead_of_being_forgotten(tmp_path: Path) -> None:
    await staged(tmp_path)
    state = next(path for path in files(tmp_path) if path.name == "state.json")
    state.write_bytes(b'{"app":"app","last"')
    with pytest.raises(Unavailable, match=r"state\.json"):
        await FileStaging(tmp_path).load()


async def test_a_disk_that_refuses_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unavailable):
        await FileStaging(tmp_path / "file" / "below").load()

"""Transactions in files: a directory per application, with a state file and a directory per batch, with a file per piece.

Invariant: a state file is replaced atomically, after all files that it refers to are on disk. File access runs in threads.

A backup copies an application as of one moment, and before the journal: the journal's copy may then have rows of a batch that
this copy does not have or has as undecided. They are skipped when the batch is committed again. The reverse would lose them.
"""

import asyncio
import itertools
import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import ParamSpec, TypeVar
from zlib import crc32

import msgspec

from ropewalk.model.errors import Unavailable
from ropewalk.model.transactions import AppRecord, Decision, StagedPiece

STATE = "state.json"
UNFINISHED = ".part"

_BATCH = re.compile(r"\d{10}")
_PIECE = re.compile(r"(\d+)-(\d+)-(\d+)-(\d+)-([0-9a-f]{8})\.rows")

P = ParamSpec("P")
T = TypeVar("T")


class FileStaging:
    """Implements `ports.Staging` in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._root = directory
        self._names = itertools.count()

    async def load(self) -> list[AppRecord]:
        return await _in_thread(self._load)

    async def put(self, app: str, batch: int, piece: StagedPiece, data: bytes) -> None:
        await _in_thread(self._put, app, batch, piece, data)

    async def discard(self, app: str, batch: int, pieces: Sequence[StagedPiece]) -> None:
        if pieces:
            await _in_thread(self._discard, self._app_directory(app) / _batch_name(batch), pieces)

    async def discard_batch(self, app: str, batch: int) -> None:
        await _in_thread(_remove_tree, self._app_directory(app) / _batch_name(batch))

    async def decide(self, app: str, last: int | None, decision: Decision) -> list[StagedPiece]:
        return await _in_thread(self._decide, app, last, decision)

    async def read(self, app: str, batch: int, piece: StagedPiece) -> bytes:
        return await _in_thread(self._read, self._app_directory(app) / _batch_name(batch), piece)

    async def finish(self, app: str, batch: int) -> None:
        await _in_thread(self._finish, app, batch)

    def _app_directory(self, app: str) -> Path:
        # Not the name itself: it may be `..`, and some file systems ignore case. The state file has the name.
        return self._root / sha256(app.encode()).hexdigest()[:32]

    # --- pieces -------------------------------------------------------------------------------------------------------

    def _put(self, app: str, batch: int, piece: StagedPiece, data: bytes) -> None:
        home = self._app_directory(app)
        if not (home / STATE).exists():
            self._write_state(AppRecord(app))
        directory = home / _batch_name(batch)
        directory.mkdir(exist_ok=True)
        path = directory / _piece_name(piece)
        # A unique name while it is written: the same piece may be sent twice at once.
        unfinished = path.with_suffix(f".{next(self._names)}{UNFINISHED}")
        try:
            unfinished.write_bytes(data)
            unfinished.rename(path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise

    def _discard(self, directory: Path, pieces: Sequence[StagedPiece]) -> None:
        for piece in pieces:
            (directory / _piece_name(piece)).unlink(missing_ok=True)

    def _read(self, directory: Path, piece: StagedPiece) -> bytes:
        data = (directory / _piece_name(piece)).read_bytes()
        if not matches(data, piece):
            raise Unavailable(f"a decided piece is damaged: {_piece_name(piece)} in {directory}")
        return data

    def _sync_piece(self, directory: Path, piece: StagedPiece) -> bool:
        """Flush the piece to disk. Returns False if it is missing or damaged."""
        try:
            with (directory / _piece_name(piece)).open("rb") as file:
                if not matches(file.read(), piece):
                    return False
                os.fsync(file.fileno())
        except FileNotFoundError:
            return False
        return True

    # --- states -------------------------------------------------------------------------------------------------------

    def _decide(self, app: str, last: int | None, decision: Decision) -> list[StagedPiece]:
        directory = self._app_directory(app) / _batch_name(decision.batch)
        broken = [piece for piece in decision.pieces if not self._sync_piece(directory, piece)]
        if not broken:
            if decision.pieces:
                _sync_directory(directory)
            self._write_state(AppRecord(app, last, decision))
        return broken

    def _finish(self, app: str, batch: int) -> None:
        self._write_state(AppRecord(app, batch))
        for directory in self._batches(self._app_directory(app)):
            if int(directory.name) <= batch:
                _remove_tree(directory)

    def _write_state(self, record: AppRecord) -> None:
        home = self._app_directory(record.app)
        if not home.exists():
            home.mkdir(parents=True, exist_ok=True)
            _sync_directory(self._root)
        unfinished = home / f"{STATE}.{next(self._names)}{UNFINISHED}"
        with unfinished.open("wb") as file:
            file.write(msgspec.json.encode(msgspec.structs.replace(record, staged={})))
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(home / STATE)
        _sync_directory(home)

    # --- after a restart ----------------------------------------------------------------------------------------------

    def _load(self) -> list[AppRecord]:
        self._root.mkdir(0o700, parents=True, exist_ok=True)
        _sync_directory(self._root.parent)
        return [self._load_app(home) for home in sorted(self._root.iterdir()) if (home / STATE).exists()]

    def _load_app(self, home: Path) -> AppRecord:
        record = read_state(home / STATE)
        staged: dict[int, list[StagedPiece]] = {}
        for directory in self._batches(home):
            batch = int(directory.name)
            if record.last is not None and batch <= record.last:
                _remove_tree(directory)
            else:
                staged[batch] = _list_pieces(directory)
        return msgspec.structs.replace(record, staged=staged)

    def _batches(self, home: Path) -> list[Path]:
        return [entry for entry in home.iterdir() if _BATCH.fullmatch(entry.name)]


def _list_pieces(directory: Path) -> list[StagedPiece]:
    """Returns the pieces; removes unfinished files."""
    found: list[StagedPiece] = []
    for path in directory.iterdir():
        if piece := parse_piece_name(path.name):
            found.append(piece)
        else:
            path.unlink()
    return found


def parse_piece_name(name: str) -> StagedPiece | None:
    if not (match := _PIECE.fullmatch(name)):
        return None
    part, attempt, seq, size, crc = match.groups()
    return StagedPiece(int(part), int(attempt), int(seq), int(size), int(crc, 16))


def read_state(path: Path) -> AppRecord:
    """Raises Unavailable for a file that is not a state."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=AppRecord)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"{path} cannot be read: {error}") from None


def _batch_name(batch: int) -> str:
    return f"{batch:010d}"


def _piece_name(piece: StagedPiece) -> str:
    return f"{piece.part}-{piece.attempt}-{piece.seq}-{piece.size}-{piece.crc:08x}.rows"


def matches(data: bytes, piece: StagedPiece) -> bool:
    """True if size and checksum are those of the piece."""
    return len(data) == piece.size and crc32(data) == piece.crc


def _remove_tree(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def _sync_directory(directory: Path) -> None:
    """Flush a directory, which holds the names of its files."""
    number = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


async def _in_thread(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    try:
        return await asyncio.to_thread(work, *args, **named)
    except OSError as error:
        raise Unavailable(f"staging: {error.strerror or error}") from error


# --- backup and verification, while a server may change the files -----------------------------------------------------

COPY_ATTEMPTS = 100


def copy_staging(root: Path, target: Path) -> None:
    """Raises Unavailable if an application changes during every attempt."""
    target.mkdir(parents=True)
    for home in sorted(path.parent for path in root.glob(f"*/{STATE}")):
        for _ in range(COPY_ATTEMPTS):
            with suppress(FileNotFoundError):  # a batch was finished or discarded meanwhile
                if _copy_app(home, target / home.name):
                    break
            shutil.rmtree(target / home.name, ignore_errors=True)
        else:
            raise Unavailable(f"the files in {home} change faster than they can be copied")


def _copy_app(home: Path, target: Path) -> bool:
    """Returns False if the application has changed during the copy."""
    state = (home / STATE).read_bytes()
    target.mkdir()
    for path in sorted(home.glob("*/*.rows")):
        (target / path.parent.name).mkdir(exist_ok=True)
        shutil.copy(path, target / path.parent.name)
    (target / STATE).write_bytes(state)
    return (home / STATE).read_bytes() == state


def damaged_staging(root: Path) -> list[str]:
    """Describes states that cannot be read, and pieces of decided batches that are missing or damaged."""
    return [problem for path in sorted(root.glob(f"*/{STATE}")) for problem in _damage(path)]


def _damage(state: Path) -> list[str]:
    try:
        record = read_state(state)
    except Unavailable as error:
        return [str(error)]
    if record.decided is None:
        return []
    pieces = {
        piece: path
        for path in state.parent.glob(f"{record.decided.batch:010d}/*.rows")
        if (piece := parse_piece_name(path.name))
    }
    return [
        f"piece {piece.seq} of part {piece.part} of batch {record.decided.batch} of {record.app} is missing or damaged"
        for piece in record.decided.pieces
        if piece not in pieces or not matches(pieces[piece].read_bytes(), piece)
    ]

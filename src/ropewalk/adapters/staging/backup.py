"""The files of transactions, copied and checked from outside while a server may change them.

Invariant: an application is copied as it was at one moment. To be copied before the journal: rows of a batch that the
copy does not know of, or knows as undecided, are skipped when the batch is committed again; the reverse would lose them.
"""

import shutil
from contextlib import suppress
from pathlib import Path

from ropewalk.adapters.staging.files import STATE, piece_of, read_state, whole
from ropewalk.model.errors import Unavailable

ATTEMPTS = 100


def copy_staging(root: Path, target: Path) -> None:
    """Raises Unavailable where an application does not stay as it is for long enough."""
    target.mkdir(parents=True)
    for home in sorted(path.parent for path in root.glob(f"*/{STATE}")):
        for _ in range(ATTEMPTS):
            with suppress(FileNotFoundError):  # a batch was finished or gave way meanwhile
                if _copy_app(home, target / home.name):
                    break
            shutil.rmtree(target / home.name, ignore_errors=True)
        else:
            raise Unavailable(f"the files in {home} change faster than they can be copied")


def _copy_app(home: Path, target: Path) -> bool:
    """False if the application moved on while it was copied."""
    state = (home / STATE).read_bytes()
    target.mkdir()
    for path in sorted(home.glob("*/*.rows")):
        (target / path.parent.name).mkdir(exist_ok=True)
        shutil.copy(path, target / path.parent.name)
    (target / STATE).write_bytes(state)
    return (home / STATE).read_bytes() == state


def damaged_staging(root: Path) -> list[str]:
    """States that cannot be read, and pieces of decided batches that are missing or damaged, in words."""
    return [problem for path in sorted(root.glob(f"*/{STATE}")) for problem in _damage(path)]


def _damage(state: Path) -> list[str]:
    try:
        record = read_state(state)
    except Unavailable as error:
        return [str(error)]
    if record.decided is None:
        return []
    pieces = {
        piece: path for path in state.parent.glob(f"{record.decided.batch:010d}/*.rows") if (piece := piece_of(path.name))
    }
    return [
        f"piece {piece.seq} of part {piece.part} of batch {record.decided.batch} of {record.app} is missing or damaged"
        for piece in record.decided.pieces
        if piece not in pieces or not whole(pieces[piece].read_bytes(), piece)
    ]

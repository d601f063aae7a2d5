"""Which table a query writes, remembered beside its checkpoint, so that it never goes on in another one.

Invariant: a query that has archived something refuses a table that is not there, is another one, or has less than what
it left. Otherwise a lost archive would be recreated silently, and the journal would delete rows that no longer exist elsewhere.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.archive.log import opened, reached

FILE = "ropewalk_archive.json"


class Binding(Struct, frozen=True):
    """The table's id in its own metadata, and its version and extent after the query's last commit."""

    table: str
    version: int
    reached: dict[int, int] = {}
    """By shard, the end of the archived rows after that commit. Older versions did not write it."""


def check(root: str, checkpoint: str, app: str, batch: int) -> None:
    """Raises UserMistake unless the table is the one that this query has written so far. `batch` 0 may begin one."""
    bound = _read(checkpoint)
    if bound is not None:
        check_bound(root, checkpoint, bound)
        return
    table = opened(root)
    if batch > 0 and (table is None or table.transaction_version(app) is None):
        raise UserMistake(
            f"this query has run before (its next batch is {batch}), but {root} has nothing of it: put the archive back, or "
            "give the query another checkpoint to start over"
        )


def check_started(root: str, checkpoint: str) -> None:
    """The part of `check` that is possible before the query starts."""
    if (bound := _read(checkpoint)) is not None:
        check_bound(root, checkpoint, bound)


def check_bound(root: str, checkpoint: str, bound: Binding) -> None:
    table = opened(root)
    if table is None:
        fault = "the table is missing"
    elif str(table.metadata().id) != bound.table:
        fault = "there is another table now"
    elif table.version() < bound.version:
        fault = f"the table is at version {table.version()} and was at {bound.version}: an older copy was put there"
    elif lost := _lost(reached(table), bound.reached):
        fault = f"it has lost its last rows ({lost}): commits in its _delta_log are damaged or missing"
    else:
        return
    raise UserMistake(
        f"the archive {root} is not the one that the checkpoint {checkpoint} belongs to: {fault}. Put it back, or move the "
        "checkpoint away to start over"
    )


def bind(root: str, checkpoint: str) -> None:
    """After a commit: this is the query's table, and this is how far it is."""
    table = opened(root)
    path = _path(checkpoint)
    if table is None or path is None:
        return
    beside = path.with_suffix(".new")
    beside.write_bytes(msgspec.json.encode(Binding(str(table.metadata().id), table.version(), reached(table))))
    beside.replace(path)


def _lost(now: Mapping[int, int], before: Mapping[int, int]) -> str:
    return ", ".join(
        f"shard {shard} ended at position {end} and ends at {now.get(shard, 0)}"
        for shard, end in sorted(before.items())
        if now.get(shard, 0) < end
    )


def _read(checkpoint: str) -> Binding | None:
    path = _path(checkpoint)
    if path is None or not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Binding)
    except msgspec.MsgspecError as error:
        raise UserMistake(f"{path} cannot be read ({error}): it names the archive that the query writes") from error


def _path(checkpoint: str) -> Path | None:
    """None for a checkpoint that is not known here, or not in a directory of this machine."""
    place = checkpoint.removeprefix("file://")
    return Path(place) / FILE if place and "://" not in place and Path(place).is_dir() else None

"""What a replay's name stands for: one selection of rows, and the names these are published under.

Invariant: the server passes over positions that it has seen from a producer, so two selections never share a producer.
Otherwise rows of the second one would be taken for published that never were. The producer's name has the digest of the
selection in it; a file beside the job's other state tells in words which selection a name was given to.
"""

import hashlib
from pathlib import Path

import msgspec
from msgspec import Struct

from ropewalk.model.errors import UserMistake

_DIGITS = 16


class ReplaySelection(Struct, frozen=True, omit_defaults=True):
    """Which rows, and the names they get. `archive` is the directory of the archive they come from; times are in UTC."""

    source: str
    archive: str = ""
    pattern: str = ""
    since: str = ""
    until: str = ""
    match: str = ""
    to: str = ""

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:_DIGITS]

    def producer(self, name: str, shard: int) -> str:
        return f"{name}:{self.digest}:{shard}"


def check_name(state_dir: Path, name: str, selection: ReplaySelection) -> None:
    """Raises UserMistake where the name belongs to another selection."""
    path = _path(state_dir, name)
    if not path.exists():
        return
    try:
        known = msgspec.json.decode(path.read_bytes(), type=ReplaySelection)
    except msgspec.MsgspecError as error:
        raise UserMistake(f"{path} cannot be read ({error}): it says what the replay {name!r} publishes") from error
    if known != selection:
        raise UserMistake(
            f"the replay {name!r} was begun with another selection: {_differences(known, selection)}. Give this one a name of "
            "its own with replay.name, or go on with what was begun"
        )


def remember(state_dir: Path, name: str, selection: ReplaySelection) -> None:
    """Before its first row is published."""
    path = _path(state_dir, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_bytes(msgspec.json.encode(selection))
    beside.replace(path)


def _path(state_dir: Path, name: str) -> Path:
    return state_dir / "replays" / f"{name}.json"


def _differences(before: ReplaySelection, now: ReplaySelection) -> str:
    old, new = msgspec.structs.asdict(before), msgspec.structs.asdict(now)
    return ", ".join(f"{key} was {old[key]!r} and is {new[key]!r}" for key in old if old[key] != new[key])

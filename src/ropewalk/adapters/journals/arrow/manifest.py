"""What the journal knows of itself: its shards, their lives, and whether it was stopped in order.

The rule it keeps: it is written whole and twice, with a checksum, so that one bad file costs nothing.
"""

from pathlib import Path

import msgspec
from msgspec import Struct

from ropewalk.adapters.journals.arrow.checked import checked, unchecked
from ropewalk.adapters.journals.arrow.disk import Disk

NAMES = ("journal.json", "journal.copy.json")

LIFE_BITS = 40
"""A life's number lies above the lowest 40 bits of its positions: it begins above whatever the one before can have given."""


class LifeRecord(Struct, frozen=True):
    """`first` is the oldest position still kept, `end` the first one not written yet when this was recorded. They are the same
    for a life whose rows are gone. `promised` lies above `end` where damage took what was between them."""

    epoch: str
    number: int
    first: int
    end: int
    promised: int = 0


class Manifest(Struct, frozen=True):
    """`clean`: the journal was stopped in order and the ends are exact. `lives` are by shard, oldest first, the last in use."""

    generation: int
    shards: int
    durability: str
    boot_id: str
    clean: bool
    group: int
    lives: list[list[LifeRecord]]
    archived: dict[int, int] = {}


def save(directory: Path, manifest: Manifest, disk: Disk) -> None:
    data = checked(msgspec.json.encode(manifest))
    for name in NAMES:
        disk.replace(directory / name, data)


def load(directory: Path) -> Manifest | None:
    """The newest that is whole; None if there is none."""
    found = [manifest for name in NAMES if (manifest := _load(directory / name)) is not None]
    return max(found, key=lambda manifest: manifest.generation, default=None)


def _load(path: Path) -> Manifest | None:
    try:
        return msgspec.json.decode(unchecked(path.read_bytes()), type=Manifest)
    except (OSError, ValueError):  # msgspec's errors are ValueErrors
        return None

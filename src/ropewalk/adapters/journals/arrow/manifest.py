"""The manifest: the journal's format, its shards, their generations, and whether it was shut down cleanly.

Invariant: it is written as a whole and twice, with a checksum, so that one bad file does no harm. A manifest that cannot be
read, or that a newer version wrote, is never taken for a new journal. The names of the JSON keys are part of the format and
do not change.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from ropewalk.adapters.journals.arrow.checksum import checked, unchecked
from ropewalk.adapters.journals.arrow.disk import Disk
from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import GENERATION_BITS as GENERATION_BITS

FORMAT = 2
"""1: without a number, and with `promised` beside a generation's end. 2: with the holes of each generation."""

NAMES = ("journal.json", "journal.copy.json")


class GenerationRecord(Struct, frozen=True):
    """`first` is the oldest position still kept, `end` the first one not written yet when this was recorded. They are the same
    for a generation whose rows are gone. `holes` are positions between the two that cannot be read any more."""

    epoch: str
    number: int
    first: int
    end: int
    holes: list[tuple[int, int]] = []


class Manifest(Struct, frozen=True):
    """`clean`: the journal was stopped in order and the ends are exact. `generations` are by shard, oldest first, the last in
    use.

    `incomplete`: positions may have been given of which nothing is here, as in a backup of a journal that went on.
    """

    revision: int = field(name="generation")
    shards: int
    durability: str
    boot_id: str
    clean: bool
    group: int
    generations: list[list[GenerationRecord]] = field(name="lives")
    archived: dict[int, int] = {}
    incomplete: bool = False
    format: int = FORMAT


def save(directory: Path, manifest: Manifest, disk: Disk) -> None:
    data = checked(msgspec.json.encode(manifest))
    for name in NAMES:
        disk.replace(directory / name, data)


def load(directory: Path) -> Manifest | None:
    """The newest that is whole, in the present format; None if there is none.

    Raises UserMistake for a newer format, and OSError for a file that exists and cannot be read.
    """
    found = [raw for name in NAMES if (raw := _load(directory / name)) is not None]
    if not found:
        return None
    return _migrated(directory, max(found, key=_revision))


def stored_format(directory: Path) -> int | None:
    """The format that is on disk; None where there is no record that can be read."""
    found = [raw for name in NAMES if (raw := _load(directory / name)) is not None]
    return int(max(found, key=_revision).get("format", 1)) if found else None


def damaged_copies(directory: Path) -> list[str]:
    """Names of those that should be there and are not as they were written."""
    return [name for name in NAMES if _load(directory / name) is None]


def _load(path: Path) -> dict[str, Any] | None:
    try:
        raw = msgspec.json.decode(unchecked(path.read_bytes()), type=dict[str, Any])
        _revision(raw)
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # msgspec's errors are ValueErrors
        return None
    return raw


def _revision(raw: dict[str, Any]) -> int:
    return int(raw["generation"])


# --- older formats ---------------------------------------------------------------------------------------------------


def _migrated(directory: Path, raw: dict[str, Any]) -> Manifest | None:
    number = raw.get("format", 1)
    if number > FORMAT:
        raise UserMistake(
            f"the journal in {directory} has format {number}, and this version of Ropewalk knows formats up to {FORMAT}: "
            "start the version that wrote it, or a newer one"
        )
    try:
        while number < FORMAT:
            raw = MIGRATIONS[number](raw)
            number += 1
        return msgspec.json.decode(msgspec.json.encode(raw), type=Manifest)
    except (KeyError, TypeError, ValueError):
        return None


def _with_holes(raw: dict[str, Any]) -> dict[str, Any]:
    """From 1 to 2: what had been promised beyond the end of a generation is a hole before its end."""
    return {
        **raw,
        "format": 2,
        "lives": [[_generation_with_holes(generation) for generation in generations] for generations in raw["lives"]],
    }


def _generation_with_holes(generation: dict[str, Any]) -> dict[str, Any]:
    first, end, promised = generation["first"], generation["end"], generation.get("promised", 0)
    if promised <= end:
        return {**generation, "holes": []}
    if first == end:  # all of its rows are gone, and only where it ended is told
        return {**generation, "first": promised, "end": promised, "holes": []}
    return {**generation, "end": promised, "holes": [(end, promised)]}


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _with_holes}
"""By the format they start from; each leads to the next one."""

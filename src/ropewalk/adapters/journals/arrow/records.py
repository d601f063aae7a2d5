"""The metadata of the journal: the manifest and the commit log; and the file operations of all of its files.

The manifest has the format, the shards, their generations, and whether the journal was shut down cleanly. Two copies with a
checksum are written, so that one may be damaged. An unreadable manifest, or one of a newer version, is never taken for a new
journal. The JSON keys are part of the format and do not change.

The commit log lists the completed groups and the end of each shard after them. An entry is written after the rows of its group
and before the acknowledgement, and is either correct or unreadable. So missing rows covered by an entry are damage, and rows
without an entry were never acknowledged.
"""

import fcntl
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
from msgspec import Struct, field

from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import GENERATION_BITS as GENERATION_BITS

# --- file operations --------------------------------------------------------------------------------------------------

NEW = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
PRIVATE = 0o600


class Disk:
    """The file operations of the journal, which tests replace to simulate a full or failing disk.

    Bytes are written at an explicit offset, never appended, so that a failed write is overwritten.
    """

    def boot_id(self) -> str:
        """Identifies this boot of the operating system. "" if unknown: then the page cache counts as lost."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return ""

    def open(self, path: Path) -> int:
        return os.open(path, NEW, PRIVATE)

    def write(self, fd: int, data: bytes, at: int) -> None:
        """Write all bytes. On OSError, part of them may be written."""
        view = memoryview(data)
        while view:
            written = os.pwrite(fd, view, at)
            view, at = view[written:], at + written

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def sync_file(self, path: Path) -> None:
        """Also for directories, whose entries are then on disk."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.sync(fd)
        finally:
            os.close(fd)

    def replace(self, path: Path, data: bytes) -> None:
        """Replace the contents of the file atomically."""
        fresh = path.with_name(path.name + ".new")
        fd = self.open(fresh)
        try:
            self.truncate(fd, 0)
            self.write(fd, data, 0)
            self.sync(fd)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        fresh.replace(path)
        self.sync_file(path.parent)


def lock(path: Path) -> int:
    """Held until the process ends or the descriptor is closed."""
    fd = os.open(path, NEW, PRIVATE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise UserMistake(f"another server uses this journal: {path.parent}") from None
    return fd


# --- small files: a body, and a line with its CRC --------------------------------------------------------------------


def checked(body: bytes) -> bytes:
    """`body` must not contain a line feed."""
    return b"%s\n%08x\n" % (body, crc32(body))


def unchecked(data: bytes) -> bytes:
    """Raises ValueError for damaged data."""
    body, checksum, _ = data.split(b"\n")
    if int(checksum, 16) != crc32(body):
        raise ValueError("the checksum is wrong")
    return body


# --- the manifest ------------------------------------------------------------------------------------------------------

FORMAT = 2
"""1: without a number, and with `promised` beside a generation's end. 2: with the holes of each generation."""

NAMES = ("journal.json", "journal.copy.json")


class GenerationRecord(Struct, frozen=True):
    """`first`: the oldest kept position; `end`: the next position when this was written. They are equal if no row is kept.
    `holes`: positions in between that can no longer be read."""

    epoch: str
    number: int
    first: int
    end: int
    holes: list[tuple[int, int]] = []


class Manifest(Struct, frozen=True):
    """The contents of `journal.json`.

    Attributes:
        clean: the journal was shut down in order, so the ends are exact.
        generations: by shard, oldest first; the last one is current.
        incomplete: acknowledged positions may be missing, as in a backup.
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
    """The newest valid copy, in the current format; None if there is none.

    Raises UserMistake for a newer format, and OSError for a file that exists and cannot be read.
    """
    found = [raw for name in NAMES if (raw := _load(directory / name)) is not None]
    if not found:
        return None
    return _migrated(directory, max(found, key=_revision))


def stored_format(directory: Path) -> int | None:
    """The format on disk; None without a readable manifest."""
    found = [raw for name in NAMES if (raw := _load(directory / name)) is not None]
    return int(max(found, key=_revision).get("format", 1)) if found else None


def damaged_copies(directory: Path) -> list[str]:
    """Names of the copies that are missing or damaged."""
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
    """From 1 to 2: acknowledged positions after the end of a generation become a hole before its end."""
    return {
        **raw,
        "format": 2,
        "lives": [[_generation_with_holes(generation) for generation in generations] for generations in raw["lives"]],
    }


def _generation_with_holes(generation: dict[str, Any]) -> dict[str, Any]:
    first, end, promised = generation["first"], generation["end"], generation.get("promised", 0)
    if promised <= end:
        return {**generation, "holes": []}
    if first == end:  # no row is kept, only the end
        return {**generation, "first": promised, "end": promised, "holes": []}
    return {**generation, "end": promised, "holes": [(end, promised)]}


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _with_holes}
"""By the format they migrate from, each to the next one."""


# --- the commit log --------------------------------------------------------------------------------------------------

ENTRY = struct.Struct("<QQII")  # group, end, shard, checksum
UNCHECKED = ENTRY.size - 4
ROTATED_AT = 4 * 1024 * 1024


class CommittedEnds(Struct, frozen=True):
    """The committed end of each shard. `whole`: no entry is unreadable or missing at the beginning."""

    ends: dict[int, int]
    group: int
    whole: bool


class CommitLog:
    """At most two files: a new one begins with the ends of all shards, and then all but the previous one are removed."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._fd = -1
        self._size = 0
        self._number = max(_numbers(directory), default=0)

    def begin(self, group: int, ends: dict[int, int]) -> None:
        """Start a new file. If that fails, the old one stays in use."""
        path = _path(self._directory, self._number + 1)
        fd = self._disk.open(path)
        entries = _entries(group, ends)
        try:
            self._disk.truncate(fd, 0)
            self._disk.write(fd, entries, 0)
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        self.close()
        self._fd, self._size, self._number = fd, len(entries), self._number + 1
        for number in _numbers(self._directory):
            if number < self._number - 1:
                _path(self._directory, number).unlink(missing_ok=True)

    @property
    def full(self) -> bool:
        return self._size >= ROTATED_AT

    def add(self, group: int, ends: dict[int, int]) -> None:
        """Raises OSError; then call `undo`."""
        entries = _entries(group, ends)
        self._disk.write(self._fd, entries, self._size)
        self._size += len(entries)

    def undo(self) -> None:
        """Truncate the bytes of a failed `add`."""
        self._disk.truncate(self._fd, self._size)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_commits(directory: Path, shards: int) -> CommittedEnds:
    """Reads the newest file, and the one before it in case the newest is damaged."""
    ends: dict[int, int] = {}
    last, whole = 0, False
    for number in sorted(_numbers(directory)):
        try:
            data = _path(directory, number).read_bytes()
        except FileNotFoundError:  # a running server has begun a new file with the same ends
            continue
        whole = len(data) >= shards * ENTRY.size
        for at in range(0, len(data) - ENTRY.size + 1, ENTRY.size):
            group, end, shard, checksum = ENTRY.unpack_from(data, at)
            if crc32(data[at : at + UNCHECKED]) != checksum:
                whole = False
                continue
            ends[shard] = max(end, ends.get(shard, 0))
            last = max(last, group)
    return CommittedEnds(ends, last, whole)


def _entries(group: int, ends: dict[int, int]) -> bytes:
    pieces = []
    for shard, end in ends.items():
        entry = ENTRY.pack(group, end, shard, 0)[:UNCHECKED]
        pieces.append(entry + crc32(entry).to_bytes(4, "little"))
    return b"".join(pieces)


def _numbers(directory: Path) -> list[int]:
    names = (path.stem.removeprefix("commits-") for path in directory.glob("commits-*.log"))
    return [int(name) for name in names if name.isdecimal()]


def _path(directory: Path, number: int) -> Path:
    return directory / f"commits-{number:08}.log"

"""The commit log: which groups were completed, and how far each shard came by them.

Invariant: an entry is written after its group's rows and before the acknowledgement, and is either correct or unreadable. So
rows that an entry covers were acknowledged, and if they are missing, that is damage. Rows that no entry covers were never
acknowledged.
"""

import os
import struct
from pathlib import Path
from zlib import crc32

from msgspec import Struct

from ropewalk.adapters.journals.arrow.disk import Disk

ENTRY = struct.Struct("<QQII")  # group, end, shard, checksum
UNCHECKED = ENTRY.size - 4
ROTATED_AT = 4 * 1024 * 1024


class CommittedEnds(Struct, frozen=True):
    """The committed end of each shard. `whole`: no entry was unreadable and none is missing at the beginning."""

    ends: dict[int, int]
    group: int
    whole: bool


class CommitLog:
    """Two files at the most: a new one begins with the ends of all shards, and then the one before the last goes."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._fd = -1
        self._size = 0
        self._number = max(_numbers(directory), default=0)

    def begin(self, group: int, ends: dict[int, int]) -> None:
        """Start a new file. When that fails, the old one goes on."""
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
        """Raises OSError, and then `undo` must follow."""
        entries = _entries(group, ends)
        self._disk.write(self._fd, entries, self._size)
        self._size += len(entries)

    def undo(self) -> None:
        """Take away what a failed `add` may have left."""
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
        except FileNotFoundError:  # a server is running and has begun another one, which says the same
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

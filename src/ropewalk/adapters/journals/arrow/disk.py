"""The file operations of the journal, which tests replace to simulate a full or failing disk; and small files with a checksum.

Invariant: bytes are written at an explicit offset, never appended, so that a failed write is overwritten.
"""

import fcntl
import os
from pathlib import Path
from zlib import crc32

from ropewalk.model.errors import UserMistake

NEW = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
PRIVATE = 0o600


class Disk:
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

"""Taking off what does not count.

The rule it keeps: what was promised and is bad is kept aside under another name, for whoever wants to look at it.
"""

import os
from pathlib import Path

from ropewalk.adapters.journals.arrow.disk import Disk
from ropewalk.adapters.journals.arrow.inspection import Found
from ropewalk.adapters.journals.arrow.segment import index_path
from ropewalk.adapters.journals.arrow.state import state_path

PIECE = 1024 * 1024


def drop_group(holders: list[Found]) -> None:
    """The last group, if some of its batches are not there: all of them or none."""
    members = holders[0].tail[0].members
    if sum(len(found.tail) for found in holders) >= members:
        return
    for found in holders:
        segment = next(segment for segment in reversed(found.segments) if segment.rows)
        size = segment.size
        for _ in found.tail:
            segment.drop_last()
        found.spare += size - segment.size


def cut(found: Found, damaged: bool, disk: Disk) -> int:
    """Leave the segments that count, each as long as it counts. Answers how many bytes went."""
    gone = 0
    for path in found.left_over:
        remove(path, False)
    for path in found.rest:
        gone += path.stat().st_size
        remove(path, damaged)
    for segment in found.segments:
        gone += _shorten(segment.path, segment.size, damaged, disk)
    return gone


def remove(path: Path, damaged: bool) -> None:
    for beside in (index_path(path), state_path(path)):
        beside.unlink(missing_ok=True)
    if damaged:
        path.rename(path.with_suffix(".damaged"))
    else:
        path.unlink(missing_ok=True)


def _shorten(path: Path, size: int, damaged: bool, disk: Disk) -> int:
    length = path.stat().st_size
    if length == size:
        return 0
    index_path(path).unlink(missing_ok=True)
    fd = disk.open(path)
    try:
        if damaged:
            _copy_tail(fd, size, length, path.with_suffix(".damaged"), disk)
        disk.truncate(fd, size)
    finally:
        os.close(fd)
    return length - size


def _copy_tail(fd: int, at: int, end: int, path: Path, disk: Disk) -> None:
    copy = disk.open(path)
    begin = at
    try:
        while at < end:
            piece = os.pread(fd, min(PIECE, end - at), at)
            disk.write(copy, piece, at - begin)
            at += len(piece)
    except OSError:
        path.unlink()  # a full disk must not keep the server from starting: the copy is for the curious
    finally:
        os.close(copy)

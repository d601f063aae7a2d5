"""Truncates what does not count: bytes that were never acknowledged, and files that should be removed already."""

import os
from pathlib import Path

from ropewalk.adapters.journals.arrow.disk import Disk
from ropewalk.adapters.journals.arrow.inspection import InspectedGeneration
from ropewalk.adapters.journals.arrow.segment import index_path
from ropewalk.adapters.journals.arrow.state import state_path


def drop_group(holders: list[InspectedGeneration]) -> None:
    """The last group, if some of its batches are not there: all of them or none."""
    members = holders[0].tail[0].members
    if sum(len(found.tail) for found in holders) >= members:
        return
    for found in holders:
        while not found.segments[-1].rows:  # it began where the group ended
            found.unborn = [*found.unborn, found.segments.pop().path]
        segment = found.segments[-1]
        size = segment.size
        for _ in found.tail:
            segment.drop_last()
        found.spare += size - segment.size


def cut(found: InspectedGeneration, to_its_end: bool, disk: Disk) -> int:
    """Remove left-over files and, of a generation that goes on, the bytes behind its end. Returns the number of the latter."""
    for path in found.chain.left_over:
        remove(path)
    if not to_its_end:
        return 0
    gone = 0
    for path in found.unborn:
        gone += path.stat().st_size
        remove(path)
    if found.segments:
        gone += _shorten(found.segments[-1].path, found.segments[-1].size, disk)
    return gone


def remove(path: Path) -> None:
    for each in (index_path(path), state_path(path), path):
        each.unlink(missing_ok=True)


def _shorten(path: Path, size: int, disk: Disk) -> int:
    length = path.stat().st_size
    if length == size:
        return 0
    index_path(path).unlink(missing_ok=True)
    fd = disk.open(path)
    try:
        disk.truncate(fd, size)
    finally:
        os.close(fd)
    return length - size

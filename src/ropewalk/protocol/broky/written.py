"""Frames that the server wrote itself, which need no checks: where each begins, and the fields of a run in the usual layout."""

from collections.abc import Iterator
from struct import unpack_from

from ropewalk.protocol.broky.frames import Run
from ropewalk.protocol.broky.tables import prefix_of

_RUN = prefix_of(Run)
_OFFSET, _REF, _COUNT, _KEY, _EPOCH = 64, 80, 84, 88, 108


def frames_in(data: bytes) -> Iterator[tuple[int, int]]:
    """Where each of several whole frames begins and ends."""
    start = 0
    while start < len(data):
        stop = start + 4 + int.from_bytes(data[start : start + 4], "little")
        yield start, stop
        start = stop


def is_run(data: bytes, start: int) -> bool:
    """Of the frame that begins there."""
    return data.startswith(_RUN, start + 4)


def with_ref(run: bytes, ref: int) -> bytes:
    return b"%b%b%b" % (run[:_REF], ref.to_bytes(4, "little"), run[_COUNT:])


def head_of(run: bytes) -> tuple[int, bytes, bytes, int]:
    """Its ref, its key, and the epoch and offset of its last message; offset 0 where it has no position."""
    offset, ref, count = unpack_from("<Q8xII", run, _OFFSET)
    return ref, _vector(run, _KEY), _vector(run, _EPOCH), offset and offset + count - 1


def _vector(run: bytes, at: int) -> bytes:
    start: int = at + unpack_from("<I", run, at)[0]
    size: int = unpack_from("<I", run, start)[0]
    return run[start + 4 : start + 4 + size]

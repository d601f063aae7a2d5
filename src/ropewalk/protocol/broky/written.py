"""Reads frames that the server encoded itself, without checks: their boundaries, and the fields of runs in the fixed layout."""

from collections.abc import Iterator
from struct import unpack_from

from ropewalk.protocol.broky.frames import Run
from ropewalk.protocol.broky.tables import frame_prefix

_RUN = frame_prefix(Run)
_OFFSET, _REF, _COUNT, _KEY, _EPOCH = 64, 80, 84, 88, 108


def frames_in(data: bytes) -> Iterator[tuple[int, int]]:
    """The beginning and end of each complete frame."""
    start = 0
    while start < len(data):
        stop = start + 4 + int.from_bytes(data[start : start + 4], "little")
        yield start, stop
        start = stop


def is_run(data: bytes, start: int) -> bool:
    """Whether the frame at `start` is a run."""
    return data.startswith(_RUN, start + 4)


def with_ref(run: bytes, ref: int) -> bytes:
    return b"%b%b%b" % (run[:_REF], ref.to_bytes(4, "little"), run[_COUNT:])


def parse_run_head(run: bytes) -> tuple[int, bytes, bytes, int]:
    """The ref, the key, and the epoch and offset of the last message; offset 0 without a position."""
    offset, ref, count = unpack_from("<Q8xII", run, _OFFSET)
    return ref, _vector(run, _KEY), _vector(run, _EPOCH), offset and offset + count - 1


def _vector(run: bytes, at: int) -> bytes:
    start: int = at + unpack_from("<I", run, at)[0]
    size: int = unpack_from("<I", run, start)[0]
    return run[start + 4 : start + 4 + size]

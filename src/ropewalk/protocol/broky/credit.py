"""Credit: how many bytes of runs a subscriber accepts before it grants more. Only runs count, including the size field.

A run is sent whole as long as any credit is left, so that a run larger than the credit is not blocked. The excess is deducted
from the next grant. The frames that are counted were encoded here, so they are read without checks, in the fixed layout.
"""

from collections.abc import Iterator
from struct import unpack_from

from ropewalk.model.messages import Position
from ropewalk.protocol.broky.frames import Run
from ropewalk.protocol.broky.tables import frame_prefix, malformed
from ropewalk.protocol.codec import MeteredPart
from ropewalk.protocol.stream_keys import decode_key

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


MAX_CREDIT_BYTES = 2**32 - 1
"""Maximum unused credit."""


class CreditMeter:
    """The `Meter` of one connection."""

    def __init__(self, credit: int) -> None:
        self.left = credit

    def grant(self, more: int) -> None:
        """Raises MalformedFrame."""
        if self.left + more > MAX_CREDIT_BYTES:
            raise malformed(f"more than {MAX_CREDIT_BYTES} bytes of credit")
        self.left += more

    def counted(self, data: bytes) -> int:
        return sum(stop - start for start, stop in frames_in(data) if is_run(data, start))

    def parts(self, data: bytes) -> Iterator[MeteredPart]:
        for start, stop in frames_in(data):
            frame = data[start:stop]
            if is_run(data, start):
                ref, key, epoch, offset = parse_run_head(frame)
                yield MeteredPart(frame, "" if ref else decode_key(key), Position(epoch.decode(), offset) if offset else None)
            else:
                yield MeteredPart(frame)

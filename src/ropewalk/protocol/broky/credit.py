"""Credit: how many bytes of runs a subscriber accepts before it grants more. Only runs count, including the size field.

A run is sent whole as long as any credit is left, so that a run larger than the credit is not blocked. The excess is deducted
from the next grant.
"""

from collections.abc import Iterator

from ropewalk.model.messages import Position
from ropewalk.protocol.broky.tables import malformed
from ropewalk.protocol.broky.written import frames_in, is_run, parse_run_head
from ropewalk.protocol.codec import MeteredPart
from ropewalk.protocol.stream_keys import decode_key

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

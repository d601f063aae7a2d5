"""Credit: how many bytes of runs a subscriber takes before it grants more. Only runs count, with the four bytes of their size.

A run is sent whole as long as any credit is left, so that one that is larger than all of it does not wait for ever. What it
took too much is taken off what is granted next.
"""

from collections.abc import Iterator

from ropewalk.model.messages import Position
from ropewalk.protocol.broky.tables import malformed
from ropewalk.protocol.broky.written import frames_in, head_of, is_run
from ropewalk.protocol.codec import MeteredPart
from ropewalk.protocol.stream_keys import name_of

MOST_CREDIT = 2**32 - 1
"""Bytes that may be granted and not used."""


class CreditMeter:
    """The `Meter` of one connection."""

    def __init__(self, credit: int) -> None:
        self.left = credit

    def grant(self, more: int) -> None:
        """Raises MalformedFrame."""
        if self.left + more > MOST_CREDIT:
            raise malformed(f"more than {MOST_CREDIT} bytes of credit")
        self.left += more

    def counted(self, data: bytes) -> int:
        return sum(stop - start for start, stop in frames_in(data) if is_run(data, start))

    def parts(self, data: bytes) -> Iterator[MeteredPart]:
        for start, stop in frames_in(data):
            frame = data[start:stop]
            if is_run(data, start):
                ref, key, epoch, offset = head_of(frame)
                yield MeteredPart(frame, "" if ref else name_of(key), Position(epoch.decode(), offset) if offset else None)
            else:
                yield MeteredPart(frame)

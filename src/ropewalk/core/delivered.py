"""The offsets of one stream that were sent to a connection, or will be sent live: ranges within one epoch.

Invariant: no offset is sent twice on one connection, and a dropped one can still be requested.
"""

from msgspec import Struct
from msgspec.structs import replace

from ropewalk.model.messages import Position

MAX_RANGES = 32
"""Ranges that are kept for one stream of one subscription. Bounds the memory for a client that repeatedly drops messages and
never requests them; see `horizon`."""

Range = tuple[int, int]
"""First and last offset, both included."""


class Delivered(Struct, frozen=True, gc=False):
    """Sent offsets. There are no ranges if no message was dropped. Live delivery does not change this record.

    Args:
        live_from: all offsets from here on are sent live.
        ranges: sent below `live_from`; in rising order, not adjacent.
        horizon: up to it the ranges were discarded, because there were too many. Requests there are answered with a gap.
    """

    epoch: str
    live_from: int
    ranges: tuple[Range, ...] = ()
    horizon: int = 0

    def is_missing(self, offset: int) -> bool:
        """True if a message of this epoch was not sent and will not be sent live."""
        return self.horizon < offset < self.live_from and not any(low <= offset <= high for low, high in self.ranges)

    def add(self, first: int, last: int) -> "Delivered":
        """The same, after first … last were sent as history."""
        apart: list[Range] = []
        for low, high in self.ranges:
            if high + 1 < first or last + 1 < low:
                apart.append((low, high))
            else:
                first, last = min(first, low), max(last, high)
        if last + 1 < self.live_from:
            return _bounded(replace(self, ranges=tuple(sorted([*apart, (first, last)]))))
        return replace(self, live_from=min(first, self.live_from), ranges=tuple(apart))

    def remove(self, after: Position, upto: Position) -> "Delivered":
        """The same, after live messages above `after`, up to and with `upto`, were dropped."""
        if upto.epoch != self.epoch:  # the stream restarted while we listened: all of its new epoch was live
            return Delivered(upto.epoch, 1).remove(after, upto) if upto.offset else self
        sent = after.offset if after.epoch == self.epoch else 0
        if upto.offset < self.live_from or sent >= upto.offset:
            return self
        closed = ((self.live_from, sent),) if sent >= self.live_from else ()
        return _bounded(replace(self, live_from=upto.offset + 1, ranges=self.ranges + closed))


def _bounded(delivered: Delivered) -> Delivered:
    if len(delivered.ranges) <= MAX_RANGES:
        return delivered
    (_, horizon), *ranges = delivered.ranges
    return replace(delivered, ranges=tuple(ranges), horizon=max(horizon, delivered.horizon))

"""The last registered sequence of each producer, by shard.

Invariant: a producer's sequence is registered once and in order within a shard. A shard can only lose rows from its end. So
a sequence above the last known one was not registered, and all others were.
"""

from collections import OrderedDict

from ropewalk.model.messages import Position

REMEMBERED = 256
"""Positions kept of one producer in one shard, so that a repetition of the latest gets an exact answer."""

FORGOTTEN = Position("", 0)
"""The answer to a repetition of what was registered long ago: it was, but where is no longer known here."""


class _Line:
    __slots__ = ("last", "positions")

    def __init__(self) -> None:
        self.last = -1
        self.positions: OrderedDict[int, Position] = OrderedDict()


class Producers:
    """One small record a producer and shard, without a term: an application may come back after weeks."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[tuple[str, int], _Line] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def find(self, producer: str, shard: int, sequence: int) -> Position | None:
        """Where the sequence was registered; None if it was not yet."""
        line = self._lines.get((producer, shard))
        if line is None or sequence > line.last:
            return None
        return line.positions.get(sequence, FORGOTTEN)

    def remember(self, producer: str, shard: int, sequence: int, position: Position) -> None:
        """Call it only for a sequence that `find` does not know."""
        line = self._line(producer, shard)
        line.last = sequence
        line.positions[sequence] = position
        if len(line.positions) > REMEMBERED:
            line.positions.popitem(last=False)

    def reach(self, producer: str, shard: int, sequence: int) -> None:
        """All up to this sequence were registered, at positions nobody remembers. Harmless when more is known."""
        line = self._line(producer, shard)
        line.last = max(line.last, sequence)

    def _line(self, producer: str, shard: int) -> _Line:
        line = self._lines.get((producer, shard))
        if line is None:
            line = self._lines[producer, shard] = _Line()
        return line

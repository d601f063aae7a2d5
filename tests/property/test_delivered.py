"""Delivered ranges of a connection against a plain set of all offsets sent."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ropewalk.core import delivered
from ropewalk.core.delivered import Delivered
from ropewalk.model.messages import Position

LENGTHS = st.integers(1, 4)


class DeliveredMachine(RuleBasedStateMachine):
    """A connection that joins at some offset, receives live messages, drops some, and requests history.

    `sent`: all offsets of the current epoch that were sent. Live messages are sent at once.
    """

    @initialize(tip=st.integers(0, 8), bound=st.integers(1, 4))
    def join(self, tip: int, bound: int) -> None:
        delivered.MAX_RANGES = bound
        self.epoch, self.tip, self.sent = 1, tip, set[int]()
        self.delivered = Delivered("1", tip + 1)

    def teardown(self) -> None:
        delivered.MAX_RANGES = 32

    @rule(count=LENGTHS)
    def deliver(self, count: int) -> None:
        self.sent.update(range(self.tip + 1, self.tip + count + 1))
        self.tip += count

    @rule(count=LENGTHS)
    def drop(self, count: int) -> None:
        after = Position(str(self.epoch), self.tip)
        self.tip += count
        self.delivered = self.delivered.remove(after, Position(str(self.epoch), self.tip))

    @rule(before=LENGTHS, count=LENGTHS)
    def drop_into_a_new_epoch(self, before: int, count: int) -> None:
        """The end of one epoch and the beginning of the next are dropped together."""
        after = Position(str(self.epoch), self.tip)
        self.epoch, self.tip, self.sent = self.epoch + 1, count, set()
        self.delivered = self.delivered.remove(after, Position(str(self.epoch), count))

    @rule(first=st.integers(1, 40), count=LENGTHS)
    def replay(self, first: int, count: int) -> None:
        """Send the undelivered part of a history range up to the tip."""
        last = min(first + count - 1, self.tip)
        if first > last:
            return
        undelivered = [offset for offset in range(first, last + 1) if self.delivered.is_missing(offset)]
        assert not self.sent & set(undelivered)
        missing = set(range(max(first, self.delivered.horizon + 1), last + 1)) - self.sent
        assert set(undelivered) == missing
        self.delivered = self.delivered.add(first, last)
        self.sent.update(undelivered)

    @invariant()
    def only_unsent_offsets_are_undelivered(self) -> None:
        if hasattr(self, "delivered"):
            known = range(self.delivered.horizon + 1, self.tip + 1)
            assert {offset for offset in known if self.delivered.is_missing(offset)} == set(known) - self.sent
            assert not any(self.delivered.is_missing(offset) for offset in range(1, self.delivered.horizon + 1))

    @invariant()
    def ranges_are_sorted_disjoint_and_bounded(self) -> None:
        if hasattr(self, "delivered"):
            edges = [edge for low, high in self.delivered.ranges for edge in (low, high + 1)]
            assert edges == sorted(edges)
            assert len(edges) == len(set(edges))
            assert not edges or edges[-1] < self.delivered.live_from
            assert len(self.delivered.ranges) <= delivered.MAX_RANGES


TestDelivered = DeliveredMachine.TestCase

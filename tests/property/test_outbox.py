"""The outbox against a plain list that is rebuilt at every overflow."""

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ropewalk.core.outbox import Outbox, Skipped
from ropewalk.model.rules import SlowPolicy
from tests.property.effort import EFFORT


@dataclass
class Waiting:
    key: str | None
    frame: bytes
    droppable: bool
    skipped: bool = False


class OutboxMachine(RuleBasedStateMachine):
    """The model: who waits, in order; and the keys that may skip, in the order in which they came to wait."""

    @initialize(limit=st.integers(0, 40))
    def begin(self, limit: int) -> None:
        self.limit, self.dropped, self.number = limit, 0, 0
        self.outbox = Outbox(limit)
        self.line: list[Waiting] = []
        self.lanes: list[str | None] = []

    def lane(self, line: list[Waiting], key: str | None) -> list[Waiting]:
        return [waiting for waiting in line if waiting.key == key and waiting.droppable]

    def without(self, line: list[Waiting], gone: list[Waiting]) -> list[Waiting]:
        return [waiting for waiting in line if not any(waiting is other for other in gone)]

    def room_for(self, new: Waiting) -> list[Waiting] | None:
        """The line after `new` joined it, or None when there is no room for it."""
        line, cut = list(self.line), list[Waiting]()
        if size(line) + len(new.frame) > self.limit and new.droppable:
            own = self.lane(line, new.key)
            line, new.skipped = self.without(line, own), bool(own)
        for key in self.lanes:
            *older, newest = self.lane(line, key) or [new]
            if size(line) + len(new.frame) > self.limit and older:
                line = self.without(line, older)
                cut.append(newest)
        if size(line) + len(new.frame) > self.limit:
            return None
        for waiting in cut:
            waiting.skipped = True
        return [*line, new]

    @rule(key=st.sampled_from("abc"), length=st.integers(1, 9))
    def offer_droppable(self, key: str, length: int) -> None:
        self.offer(key, length, SlowPolicy.DROP)

    @rule(key=st.sampled_from(["a", "d", None]), length=st.integers(0, 9))
    def offer_lasting(self, key: str | None, length: int) -> None:
        self.offer(key, length, SlowPolicy.DISCONNECT)

    def offer(self, key: str | None, length: int, policy: SlowPolicy) -> None:
        self.number += 1
        frame = bytes([self.number % 256]) * length
        new = Waiting(key, frame, policy is SlowPolicy.DROP)
        line = self.room_for(new)
        assert self.outbox.offer(key, frame, policy) is (line is not None)
        if line is None:
            return
        self.dropped += len(self.line) + 1 - len(line)
        self.line = line
        if new.droppable and key not in self.lanes:
            self.lanes.append(key)

    @rule(budget=st.integers(0, 40))
    def take(self, budget: int) -> None:
        expected: list[bytes | Skipped] = []
        while self.line and (not expected or len(self.line[0].frame) <= budget):
            waiting = self.line.pop(0)
            if waiting.skipped:
                expected.append(Skipped(waiting.key))
            expected.append(waiting.frame)
            budget -= len(waiting.frame)
        self.lanes = [key for key in self.lanes if self.lane(self.line, key)]
        assert self.outbox.take(budget_of(expected, budget)) == expected

    @invariant()
    def it_counts_right_and_stays_within_its_limit(self) -> None:
        if hasattr(self, "outbox"):
            assert self.outbox.size == size(self.line) <= self.limit
            assert bool(self.outbox) is bool(self.line)
            assert self.outbox.dropped == self.dropped


def size(line: list[Waiting]) -> int:
    return sum(len(waiting.frame) for waiting in line)


def budget_of(taken: list[bytes | Skipped], left: int) -> int:
    return left + sum(len(item) for item in taken if isinstance(item, bytes))


TestOutbox = OutboxMachine.TestCase
TestOutbox.settings = EFFORT

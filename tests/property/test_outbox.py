"""The outbox against a plain list that is rebuilt at every overflow."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ropewalk.core.outbox import Outbox, Skipped
from ropewalk.model.rules import SlowPolicy


@dataclass
class Pending:
    """A pending frame, or (b"") a notice of dropped frames. `lost`: numbers of the frames dropped before it."""

    key: str | None
    frame: bytes
    droppable: bool
    number: int
    lost: list[int] = field(default_factory=list)

    def taken_as(self) -> list[bytes | Skipped]:
        notice: list[bytes | Skipped] = [Skipped(self.key, self.lost[0] - 1, self.lost[-1])] if self.lost else []
        return notice + ([self.frame] if self.frame else [])


class OutboxMachine(RuleBasedStateMachine):
    """The model: pending frames in order, and droppable keys in order of their first pending frame.

    Frames of a key are numbered 1, 2, 3 …, and the marks around a frame are the numbers before it and with it.
    """

    @initialize(limit=st.integers(0, 40))
    def begin(self, limit: int) -> None:
        self.limit, self.dropped = limit, 0
        self.numbers: dict[str | None, int] = {}
        self.outbox = Outbox(limit)
        self.line: list[Pending] = []
        self.lanes: list[str | None] = []

    def lane(self, line: list[Pending], key: str | None) -> list[Pending]:
        return [pending for pending in line if pending.key == key and pending.droppable]

    def without(self, line: list[Pending], gone: list[Pending]) -> list[Pending]:
        return [pending for pending in line if not any(pending is other for other in gone)]

    def room_for(self, new: Pending) -> list[Pending] | None:
        """The queue with `new` added, or None without room for it."""
        line, cut = list(self.line), list[tuple[Pending, list[int]]]()
        lost: list[int] = []
        if size(line) + len(new.frame) > self.limit and new.droppable:
            own = self.lane(line, new.key)
            line, lost = self.without(line, own), numbers(own)
        for key in self.lanes:
            *older, newest = self.lane(line, key) or [new]
            if size(line) + len(new.frame) > self.limit and older:
                line = self.without(line, older)
                cut.append((newest, numbers(older)))
        emptied: list[Pending] = []
        for key in () if new.droppable else self.lanes:
            newest = self.lane(line, key)[-1]
            if size(line, emptied) + len(new.frame) > self.limit and newest.frame:
                emptied.append(newest)
        if size(line, emptied) + len(new.frame) > self.limit:
            return None
        for pending, before in cut:
            pending.lost = before + pending.lost
        for pending in emptied:
            pending.frame = b""
            pending.lost.append(pending.number)
        new.lost = lost
        return [*line, new]

    def refused(self, new: Pending) -> list[Pending]:
        """The queue with a notice that `new` was dropped."""
        lane = self.lane(self.line, new.key)
        if lane and not lane[-1].frame:
            lane[-1].lost.append(new.number)
            return self.line
        return [*self.line, Pending(new.key, b"", True, new.number, [new.number])]

    @rule(key=st.sampled_from("abc"), length=st.integers(1, 45))
    def offer_droppable(self, key: str, length: int) -> None:
        self.offer(key, length, SlowPolicy.DROP)

    @rule(key=st.sampled_from("abc"), length=st.integers(1, 9))
    def offer_small_droppable(self, key: str, length: int) -> None:
        self.offer(key, length, SlowPolicy.DROP)

    @rule(key=st.sampled_from(["d", None]), length=st.integers(1, 9))
    def offer_lasting(self, key: str | None, length: int) -> None:
        self.offer(key, length, SlowPolicy.DISCONNECT)

    def offer(self, key: str | None, length: int, policy: SlowPolicy) -> None:
        number = self.numbers[key] = self.numbers.get(key, 0) + 1
        frame = bytes([number % 256]) * length
        new = Pending(key, frame, policy is SlowPolicy.DROP, number)
        before = len([pending for pending in self.line if pending.frame])
        line = self.room_for(new)
        if line is None and new.droppable:
            line = self.refused(new)
        assert self.outbox.offer(key, frame, policy, number - 1, number) is (line is not None)
        if line is None:
            return
        self.dropped += before + 1 - len([pending for pending in line if pending.frame])
        self.line = line
        if new.droppable and key not in self.lanes:
            self.lanes.append(key)

    @rule(gone=st.sets(st.sampled_from("abcd")))
    def discard(self, gone: set[str]) -> None:
        self.outbox.discard(gone)
        self.line = [pending for pending in self.line if pending.key not in gone]
        self.lanes = [key for key in self.lanes if key not in gone]

    @rule(budget=st.integers(0, 40))
    def take(self, budget: int) -> None:
        expected: list[bytes | Skipped] = []
        while self.line and (not expected or len(self.line[0].frame) <= budget):
            pending = self.line.pop(0)
            expected += pending.taken_as()
            budget -= len(pending.frame)
        self.lanes = [key for key in self.lanes if self.lane(self.line, key)]
        assert self.outbox.take(budget_of(expected, budget)) == expected

    @invariant()
    def counts_match_the_model_and_the_limit(self) -> None:
        if hasattr(self, "outbox"):
            assert self.outbox.size == size(self.line) <= self.limit
            assert bool(self.outbox) is bool(self.line)
            assert self.outbox.dropped == self.dropped


def numbers(gone: list[Pending]) -> list[int]:
    """Numbers lost with these frames: their own and those in their notices."""
    return sorted({number for pending in gone for number in (*pending.lost, pending.number)})


def size(line: list[Pending], gone: Sequence[Pending] = ()) -> int:
    return sum(len(pending.frame) for pending in line) - sum(len(pending.frame) for pending in gone)


def budget_of(taken: list[bytes | Skipped], left: int) -> int:
    return left + sum(len(item) for item in taken if isinstance(item, bytes))


TestOutbox = OutboxMachine.TestCase

"""Idempotency keys against a plain list of all stored keys."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ropewalk.core.idempotency import Dedup
from ropewalk.model.messages import Position

Key = tuple[str, str]
KEYS = st.tuples(st.sampled_from("ab"), st.sampled_from("uvwxyz"))


class DedupMachine(RuleBasedStateMachine):
    """The model: (key, position, time) in order of registration; only the newest `limit` of them count."""

    @initialize(ttl=st.sampled_from([0.0, 2.0, 5.0]), limit=st.integers(0, 4))
    def begin(self, ttl: float, limit: int) -> None:
        self.ttl, self.limit, self.now, self.offset = ttl, limit, 100.0, 0
        self.dedup = Dedup(ttl, limit)
        self.model: list[tuple[Key, Position, float]] = []

    def known(self, key: Key) -> Position | None:
        young = [position for known, position, at in self.model if known == key and self.now < at + self.ttl]
        return young[-1] if young else None

    @rule(key=KEYS)
    def register(self, key: Key) -> None:
        found = self.dedup.find(*key, self.now)
        assert found == self.known(key)
        if found is None:
            self.offset += 1
            position = Position("epoch", self.offset)
            self.dedup.remember(*key, position, self.now)
            self.model = [entry for entry in self.model if entry[0] != key] + [(key, position, self.now)]
            self.model = self.model[-self.limit :] if self.limit else []

    @rule(pause=st.integers(1, 3))
    def wait(self, pause: int) -> None:
        self.now += pause

    @rule()
    def expire(self) -> None:
        self.dedup.expire(self.now, 100)
        self.model = [entry for entry in self.model if self.now < entry[2] + self.ttl]
        assert len(self.dedup) == len(self.model)

    @invariant()
    def the_limit_holds(self) -> None:
        if hasattr(self, "dedup"):
            assert len(self.dedup) <= self.limit


TestDedup = DedupMachine.TestCase

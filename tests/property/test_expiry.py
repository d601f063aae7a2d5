"""Deadlines against a plain dict with a full scan."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ropewalk.core.expiry import MAX_STALE_ENTRIES, Expiry

KEYS_ALL = "abcdefgh"
KEYS = st.sampled_from(KEYS_ALL)
TIMES = st.integers(0, 20).map(float)


class ExpiryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.expiry = Expiry()
        self.model: dict[str, float] = {}

    def overdue(self, now: float) -> list[str]:
        return sorted((key for key, deadline in self.model.items() if deadline <= now), key=lambda key: (self.model[key], key))

    @rule(key=KEYS, deadline=TIMES)
    def set(self, key: str, deadline: float) -> None:
        self.expiry.set(key, deadline)
        self.model[key] = deadline

    @rule(key=KEYS)
    def discard(self, key: str) -> None:
        self.expiry.discard(key)
        self.model.pop(key, None)

    @rule(now=TIMES)
    def take_all(self, now: float) -> None:
        assert self.expiry.due(now, 1000) == self.overdue(now)
        self.model = {key: deadline for key, deadline in self.model.items() if deadline > now}

    @rule(now=TIMES, maximum=st.integers(0, 3))
    def take_some(self, now: float, maximum: int) -> None:
        taken = self.expiry.due(now, maximum)
        assert len(taken) <= maximum
        assert taken == self.overdue(now)[: len(taken)]
        for key in taken:
            del self.model[key]

    @invariant()
    def keys_equal_the_model_and_the_heap_is_bounded(self) -> None:
        assert len(self.expiry) == len(self.model)
        assert all(key in self.expiry for key in self.model)
        assert len(self.expiry._heap) <= 2 * len(KEYS_ALL) + MAX_STALE_ENTRIES


TestExpiry = ExpiryMachine.TestCase

"""The rulebook against a linear search of the patterns."""

from fnmatch import fnmatchcase

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core.rules import Rulebook
from ropewalk.model.rules import SinceGaps, SlowPolicy, StreamRule, StreamRules

PATTERNS = st.text("ab/*?", max_size=5)
RULES = st.builds(
    StreamRule,
    PATTERNS,
    st.none() | st.integers(0, 9),
    st.none() | st.floats(0, 9),
    st.none() | st.sampled_from(SlowPolicy),
    st.none() | st.sampled_from(SinceGaps),
)
DEFAULT = StreamRules(history_limit=77, history_ttl=88.0)


@given(st.lists(RULES, max_size=4), st.lists(st.text("ab/", max_size=4), max_size=8))
def test_first_matching_pattern_applies_to_each_stream(rules: list[StreamRule], streams: list[str]) -> None:
    rulebook = Rulebook(DEFAULT, rules)
    for stream in [*streams, *streams]:
        first = next((rule for rule in rules if fnmatchcase(stream, rule.pattern)), StreamRule(""))
        answer = rulebook.of(stream)
        assert answer.history_limit == (77 if first.history_limit is None else first.history_limit)
        assert answer.history_ttl == (88.0 if first.history_ttl is None else first.history_ttl)
        assert answer.slow_consumer == (first.slow_consumer or SlowPolicy.DISCONNECT)
        assert answer.since_gaps == (first.since_gaps or SinceGaps.CONFIRM)

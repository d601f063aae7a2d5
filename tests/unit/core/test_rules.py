"""The rulebook: which rule applies to a stream."""

from ropewalk.core.rules import Rulebook
from ropewalk.model.rules import SinceGaps, SlowPolicy, StreamRule, StreamRules

DEFAULT = StreamRules(history_limit=100, history_ttl=300.0)


def test_default_applies_without_a_matching_pattern() -> None:
    rulebook = Rulebook(DEFAULT, [StreamRule("chat/*", history_limit=5)])
    assert rulebook.of("news/1") == DEFAULT
    assert Rulebook(DEFAULT).of("news/1") == DEFAULT


def test_first_matching_pattern_wins_and_the_default_fills_unset_fields() -> None:
    rules = [
        StreamRule("chat/vip/*", history_limit=5),
        StreamRule("chat/*", history_ttl=60.0, slow_consumer=SlowPolicy.DROP, since_gaps=SinceGaps.REJECT),
    ]
    rulebook = Rulebook(DEFAULT, rules)
    assert rulebook.of("chat/vip/1") == StreamRules(5, 300.0, SlowPolicy.DISCONNECT)
    assert rulebook.of("chat/1") == StreamRules(100, 60.0, SlowPolicy.DROP, SinceGaps.REJECT)


def test_zero_overrides_the_default() -> None:
    rulebook = Rulebook(DEFAULT, [StreamRule("tick", history_limit=0, history_ttl=0.0)])
    assert rulebook.of("tick") == StreamRules(0, 0.0)


def test_pattern_matches_the_whole_name_case_sensitively() -> None:
    rulebook = Rulebook(DEFAULT, [StreamRule("Chat?", history_limit=1)])
    assert [rulebook.of(name).history_limit for name in ("Chat1", "chat1", "Chat", "Chat12", "a Chat1")] == [
        1,
        100,
        100,
        100,
        100,
    ]


def test_replaced_rules_apply_to_streams_looked_up_before() -> None:
    book = Rulebook(StreamRules(history_limit=100), [StreamRule("a", history_limit=1)])
    assert (book.of("a").history_limit, book.of("b").history_limit) == (1, 100)
    book.replace(StreamRules(history_limit=50), [StreamRule("b", history_limit=2)])
    assert (book.of("a").history_limit, book.of("b").history_limit) == (50, 2)


def test_longest_history_is_the_maximum_over_all_rules() -> None:
    assert Rulebook(StreamRules(history_limit=0)).longest_history() == 0
    assert Rulebook(StreamRules(history_limit=7), [StreamRule("a", history_limit=3)]).longest_history() == 7
    assert Rulebook(StreamRules(history_limit=7), [StreamRule("a", history_limit=9)]).longest_history() == 9


def test_history_is_kept_unless_its_limit_or_ttl_is_zero() -> None:
    book = Rulebook(StreamRules(), [StreamRule("none/*", history_limit=0), StreamRule("brief/*", history_ttl=0.0)])
    assert [book.keeps_history(name) for name in ("none/1", "brief/1", "other")] == [False, False, True]
    assert not book.keeps_all
    book.replace(StreamRules())
    assert book.keeps_all
    assert book.keeps_history("none/1")
    book.replace(StreamRules(history_limit=0))
    assert not book.keeps_all
    assert not book.keeps_history("other")

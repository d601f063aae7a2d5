"""When refusals are told in one line, and what it says."""

from ropewalk.core.refusal_summary import RefusalSummary, Summary
from ropewalk.core.stats import Stats
from ropewalk.model.refusals import Refusal


def test_nothing_refused_is_nothing_told() -> None:
    summary = RefusalSummary(Stats(), 0.0)

    assert [summary.due(float(second)) for second in range(1, 40)] == [None] * 39


def test_the_first_refusal_after_a_quiet_time_is_told_at_once_and_what_follows_once_a_period() -> None:
    stats = Stats()
    summary = RefusalSummary(stats, 0.0, period=10)
    told: dict[int, Summary] = {}
    for second in range(1, 41):
        stats.refusals[Refusal.ORIGIN] += 1 if second >= 30 else 0
        if found := summary.due(float(second)):
            told[second] = found

    assert told == {30: Summary(1.0, {"origin": 1}), 40: Summary(10.0, {"origin": 10})}


def test_what_was_counted_before_is_not_told_again() -> None:
    stats = Stats()
    stats.refusals[Refusal.BAD_KEY] = 7
    summary = RefusalSummary(stats, 0.0)
    stats.refusals[Refusal.BAD_KEY] += 2

    assert summary.due(1.0) == Summary(1.0, {"bad_key": 2})
    assert summary.rest(2.0) is None


def test_the_most_frequent_reason_comes_first_and_kinds_with_counters_of_their_own_are_in_it() -> None:
    stats = Stats()
    summary = RefusalSummary(stats, 0.0)
    stats.refusals[Refusal.ORIGIN] += 3
    stats.auth_failures += 12
    stats.commands_failed += 1
    stats.outbox_drops += 5
    stats.publications_refused += 2
    found = summary.due(1.0)

    assert found is not None
    assert list(found.counts.items()) == [("auth", 12), ("drops", 5), ("origin", 3), ("publications", 2), ("commands", 1)]


def test_what_is_left_is_told_at_the_end_however_recent_the_last_line_is() -> None:
    stats = Stats()
    summary = RefusalSummary(stats, 0.0, period=10)
    stats.refusals[Refusal.ORIGIN] += 1
    assert summary.due(1.0) is not None
    stats.refusals[Refusal.ORIGIN] += 4

    assert summary.due(2.0) is None
    assert summary.rest(2.0) == Summary(1.0, {"origin": 4})


def test_a_clock_that_was_set_back_silences_nothing() -> None:
    stats = Stats()
    summary = RefusalSummary(stats, 1000.0)
    stats.refusals[Refusal.ORIGIN] += 1
    assert summary.due(1001.0) is not None
    stats.refusals[Refusal.ORIGIN] += 1

    assert summary.due(500.0) == Summary(0.0, {"origin": 1})


def test_a_server_at_its_own_limits_is_told_apart_from_clients_that_err() -> None:
    assert Summary(1.0, {"connections": 1, "origin": 9}).at_capacity
    assert not Summary(1.0, {"origin": 9, "auth": 3}).at_capacity

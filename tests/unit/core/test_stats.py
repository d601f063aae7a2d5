"""The counters of a node, and the summary of refusals."""

import pytest

from ropewalk.core.stats import Histogram, RefusalSummary, Stats, Summary
from ropewalk.model.refusals import Refusal


def test_counts_contain_every_counter() -> None:
    stats = Stats(publications=3)
    stats.gaps["trimmed"] += 1
    assert stats.counts()["publications"] == 3
    assert stats.counts()["deliveries"] == 0
    assert all(type(count) is int for count in stats.counts().values())
    assert len(stats.counts()) > 10


def test_buckets_are_cumulative() -> None:
    observed = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 60.0):
        observed.observe(value)
    assert observed.cumulative() == [("1.0", 2), ("2.0", 3), ("+Inf", 4)]
    assert observed.total == 63.0


def test_quantile_is_the_upper_bound_of_its_bucket_up_to_the_last_bound(subtests: pytest.Subtests) -> None:
    rows: list[tuple[float, float]] = [(0.5, 1.0), (0.75, 2.0), (0.99, 2.0)]
    for share, seconds in rows:
        with subtests.test(share=share, seconds=seconds):
            observed = Histogram((1.0, 2.0))
            for value in (0.5, 1.0, 1.5, 60.0):
                observed.observe(value)
            assert observed.quantile(share) == seconds


def test_quantile_of_an_empty_histogram_is_zero() -> None:
    assert Histogram().quantile(0.99) == 0.0


def test_no_summary_without_refusals() -> None:
    summary = RefusalSummary(Stats(), 0.0)

    assert [summary.due(float(second)) for second in range(1, 40)] == [None] * 39


def test_first_refusal_is_reported_at_once_and_later_ones_once_a_period() -> None:
    stats = Stats()
    summary = RefusalSummary(stats, 0.0, period=10)
    reported: dict[int, Summary] = {}
    for second in range(1, 41):
        stats.refusals[Refusal.ORIGIN] += 1 if second >= 30 else 0
        if found := summary.due(float(second)):
            reported[second] = found

    assert reported == {30: Summary(1.0, {"origin": 1}), 40: Summary(10.0, {"origin": 10})}


def test_refusals_counted_earlier_are_not_reported() -> None:
    stats = Stats()
    stats.refusals[Refusal.BAD_KEY] = 7
    summary = RefusalSummary(stats, 0.0)
    stats.refusals[Refusal.BAD_KEY] += 2

    assert summary.due(1.0) == Summary(1.0, {"bad_key": 2})
    assert summary.rest(2.0) is None


def test_counts_are_sorted_and_include_other_counters() -> None:
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


def test_remaining_counts_are_reported_at_the_end() -> None:
    stats = Stats()
    summary = RefusalSummary(stats, 0.0, period=10)
    stats.refusals[Refusal.ORIGIN] += 1
    assert summary.due(1.0) is not None
    stats.refusals[Refusal.ORIGIN] += 4

    assert summary.due(2.0) is None
    assert summary.rest(2.0) == Summary(1.0, {"origin": 4})


def test_clock_step_back_does_not_suppress_summaries() -> None:
    stats = Stats()
    summary = RefusalSummary(stats, 1000.0)
    stats.refusals[Refusal.ORIGIN] += 1
    assert summary.due(1001.0) is not None
    stats.refusals[Refusal.ORIGIN] += 1

    assert summary.due(500.0) == Summary(0.0, {"origin": 1})


def test_capacity_refusals_are_distinguished_from_client_errors() -> None:
    assert Summary(1.0, {"connections": 1, "origin": 9}).at_capacity
    assert not Summary(1.0, {"origin": 9, "auth": 3}).at_capacity

"""The counters of a node."""

import pytest

from ropewalk.core.stats import Histogram, Stats


def test_counts_are_all_plain_counters() -> None:
    stats = Stats(publications=3)
    stats.gaps["trimmed"] += 1
    assert stats.counts()["publications"] == 3
    assert stats.counts()["deliveries"] == 0
    assert all(type(count) is int for count in stats.counts().values())
    assert len(stats.counts()) > 10


def test_buckets_count_up() -> None:
    observed = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 60.0):
        observed.observe(value)
    assert observed.cumulative() == [("1.0", 2), ("2.0", 3), ("+Inf", 4)]
    assert observed.total == 63.0


@pytest.mark.parametrize(("share", "seconds"), [(0.5, 1.0), (0.75, 2.0), (0.99, 2.0)])
def test_a_quantile_is_the_upper_bound_of_its_bucket_and_never_above_the_last(share: float, seconds: float) -> None:
    observed = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 60.0):
        observed.observe(value)
    assert observed.quantile(share) == seconds


def test_nothing_observed_has_no_quantiles() -> None:
    assert Histogram().quantile(0.99) == 0.0

"""The counters of a node."""

import pytest

from ropewalk.core.stats import Histogram, Stats


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

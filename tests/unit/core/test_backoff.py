"""Backoff: the delay before the next attempt."""

from ropewalk.core.backoff import Backoff


def test_delay_doubles_up_to_its_cap() -> None:
    backoff = Backoff(first=1.0, cap=5.0)
    assert [backoff.delay(attempt, lambda: 1.0) for attempt in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_jitter_takes_the_delay_from_the_upper_half() -> None:
    backoff = Backoff(first=1.0, cap=5.0)
    assert backoff.delay(1, lambda: 0.0) == 1.0
    assert backoff.delay(1, lambda: 0.5) == 1.5


def test_delay_is_capped_after_a_billion_attempts() -> None:
    assert Backoff(first=1.0, cap=5.0).delay(10**9, lambda: 1.0) == 5.0

"""The token bucket: a burst at once, the rate in the long run."""

from ropewalk.core.rate import TokenBucket


def allowed(bucket: TokenBucket, now: float, tries: int) -> int:
    return sum(bucket.allow(now) for _ in range(tries))


def test_a_burst_passes_at_once_and_then_the_rate_decides() -> None:
    bucket = TokenBucket(rate=2.0, burst=5.0)
    assert allowed(bucket, 100.0, 10) == 5
    assert allowed(bucket, 100.5, 10) == 1
    assert allowed(bucket, 102.0, 10) == 3


def test_a_long_pause_saves_up_no_more_than_the_burst() -> None:
    bucket = TokenBucket(rate=2.0, burst=5.0)
    assert allowed(bucket, 100.0, 10) == 5
    assert allowed(bucket, 100_000.0, 10) == 5


def test_a_clock_that_steps_back_gives_nothing_and_goes_on_from_there() -> None:
    bucket = TokenBucket(rate=1.0, burst=1.0)
    assert bucket.allow(100.0)
    assert not bucket.allow(50.0)
    assert bucket.allow(51.0)


def test_what_was_spent_ahead_has_to_come_before_anything_is_allowed() -> None:
    bucket = TokenBucket(rate=1, burst=5)
    assert bucket.allow(100)
    bucket.spend(10)
    assert not bucket.allow(100)
    assert not bucket.allow(106)
    assert bucket.allow(107)

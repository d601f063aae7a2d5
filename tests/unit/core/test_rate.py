"""The token bucket: limits the burst and the average rate."""

from ropewalk.core.rate import TokenBucket


def allowed(bucket: TokenBucket, now: float, tries: int) -> int:
    return sum(bucket.allow(now) for _ in range(tries))


def test_burst_passes_at_once_then_the_rate_applies() -> None:
    bucket = TokenBucket(rate=2.0, burst=5.0)
    assert allowed(bucket, 100.0, 10) == 5
    assert allowed(bucket, 100.5, 10) == 1
    assert allowed(bucket, 102.0, 10) == 3


def test_long_pause_saves_at_most_one_burst() -> None:
    bucket = TokenBucket(rate=2.0, burst=5.0)
    assert allowed(bucket, 100.0, 10) == 5
    assert allowed(bucket, 100_000.0, 10) == 5


def test_clock_step_back_grants_no_tokens() -> None:
    bucket = TokenBucket(rate=1.0, burst=1.0)
    assert bucket.allow(100.0)
    assert not bucket.allow(50.0)
    assert bucket.allow(51.0)


def test_tokens_spent_ahead_are_repaid_first() -> None:
    bucket = TokenBucket(rate=1, burst=5)
    assert bucket.allow(100)
    bucket.spend(10)
    assert not bucket.allow(100)
    assert not bucket.allow(106)
    assert bucket.allow(107)


def test_several_tokens_are_taken_together_or_not_at_all() -> None:
    bucket = TokenBucket(rate=2.0, burst=5.0)
    assert bucket.allow(100.0, 4)
    assert not bucket.allow(100.0, 2)
    assert bucket.allow(100.0)
    assert bucket.allow(102.0, 4)

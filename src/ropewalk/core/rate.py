"""A token bucket. One small object for each rate limit; the clock is passed in."""


class TokenBucket:
    """Allows `rate` per second in the long run, and `burst` at once. Starts full."""

    __slots__ = ("_at", "_burst", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at = 0.0

    def spend(self, tokens: float) -> None:
        """Take tokens in advance: nothing is allowed until they are refilled."""
        self._tokens -= tokens

    def is_full(self, now: float) -> bool:
        return self._tokens + (now - self._at) * self._rate >= self._burst

    def allow(self, now: float, tokens: float = 1) -> bool:
        """Take so many tokens if there are as many. A clock that steps back refills none."""
        if now > self._at:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < tokens:
            return False
        self._tokens -= tokens
        return True

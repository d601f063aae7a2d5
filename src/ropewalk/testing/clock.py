"""A clock that only moves when a test advances it."""


class ManualClock:
    """Implements `ports.Clock` (UNIX seconds). It starts at a whole number, so that sums in tests are exact."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds

"""A clock that stands still until it is told to move."""


class ManualClock:
    """UNIX seconds, as `ports.Clock` gives them. It starts at a whole number, so that sums in tests are exact."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds

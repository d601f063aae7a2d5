"""Pauses between retries. Their jitter, which is passed in, spreads clients that lost the same server."""

from collections.abc import Callable

from msgspec import Struct

Chance = Callable[[], float]
"""A number from 0 up to 1, like `random.random`."""


class Backoff(Struct, frozen=True):
    """The pause doubles from `first` up to `cap` seconds. With jitter it is between half of that and all of it."""

    first: float = 0.2
    cap: float = 10.0

    def delay(self, attempt: int, chance: Chance) -> float:
        """`attempt` counts from 0 and restarts after a success."""
        # The exponent is limited because a float would overflow after a thousand attempts.
        longest = min(self.cap, self.first * 2.0 ** min(attempt, 60))
        return longest * (0.5 + chance() / 2)

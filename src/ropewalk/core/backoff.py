"""How long to wait before trying again. Chance is passed in: it spreads clients that lost the same server."""

from collections.abc import Callable

from msgspec import Struct

Chance = Callable[[], float]
"""A number from 0 up to 1, like `random.random`."""


class Backoff(Struct, frozen=True):
    """The wait doubles from `first` up to `cap` seconds; each one is taken from its upper half by chance."""

    first: float = 0.2
    cap: float = 10.0

    def delay(self, attempt: int, chance: Chance) -> float:
        """`attempt` counts from 0 and begins anew after a success."""
        # The exponent is bounded because a float overflows long before a patient client gives up.
        longest = min(self.cap, self.first * 2.0 ** min(attempt, 60))
        return longest * (0.5 + chance() / 2)

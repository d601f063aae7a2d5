"""A summary of refusals for one log line, at most once per period.

The counters are only read. A summary is the difference between two readings.
"""

from dataclasses import dataclass

from ropewalk.core.stats import Stats
from ropewalk.model.refusals import Refusal

PERIOD = 10.0

# The server is at a limit of its own and refuses clients that made no mistake: an operator has to act.
AT_CAPACITY = frozenset(
    {
        Refusal.ADDRESS_CONNECTIONS,  # behind it may be a proxy that --trusted_proxies does not name
        Refusal.ADDRESS_RATE,
        Refusal.CONNECTIONS,
        Refusal.DESCRIPTORS,
        Refusal.SESSIONS_FULL,
    }
)


@dataclass(frozen=True)
class Summary:
    """`counts` by reason, the most frequent first, all above 0, of the last `seconds`."""

    seconds: float
    counts: dict[str, int]

    @property
    def at_capacity(self) -> bool:
        return not AT_CAPACITY.isdisjoint(self.counts)


class RefusalSummary:
    """Call `due` about once a second. The first refusal after a quiet period is reported at once, later ones once a period."""

    def __init__(self, stats: Stats, now: float, period: float = PERIOD) -> None:
        self._stats = stats
        self._period = period
        self._reported = stats.refused()
        self._reported_at = now - period
        self._quiet_until = now

    def due(self, now: float) -> Summary | None:
        """Returns None if nothing was refused, or the last summary is too recent. A clock that was set back delays none."""
        if self._reported_at <= now < self._reported_at + self._period:
            return None
        return self.rest(now)

    def rest(self, now: float) -> Summary | None:
        """Everything that was not reported yet, even if the last summary is recent."""
        counted = self._stats.refused()
        new = {reason: count - self._reported.get(reason, 0) for reason, count in counted.items()}
        counts = dict(sorted(((reason, count) for reason, count in new.items() if count), key=lambda pair: -pair[1]))
        seconds, self._quiet_until = max(0.0, now - self._quiet_until), now
        if not counts:
            return None
        self._reported, self._reported_at = counted, now
        return Summary(seconds, counts)

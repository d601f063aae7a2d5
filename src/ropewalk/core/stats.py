"""The counters of a node, and a summary of refusals for the log.

Plain integers on the hot path; exporters read them on request.
"""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, fields

from ropewalk.model.refusals import Refusal

LATENCY_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Histogram:
    """Counts of observations by upper bound. The last bucket has no bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def cumulative(self) -> list[tuple[str, int]]:
        """Returns (upper bound as text, observations at or below it), ending with "+Inf"."""
        answer, running = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            running += count
            answer.append((bound, running))
        return answer

    def quantile(self, share: float) -> float:
        """The upper bound of the quantile's bucket; the last bound if it is above all bounds, 0 without observations."""
        rank, running = share * sum(self.counts), 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            running += count
            if running >= rank:
                return bound if rank else 0.0
        return self.bounds[-1]


@dataclass(slots=True)
class Stats:
    """Counters since start, one field each; `gaps` and `refusals` are by reason, the histograms in seconds."""

    connections_accepted: int = 0
    connections_closed: int = 0
    auth_failures: int = 0
    commands: int = 0
    commands_failed: int = 0
    publications: int = 0
    publications_duplicate: int = 0
    publications_refused: int = 0
    publications_unheard: int = 0
    broadcasts_claimed: int = 0
    deliveries: int = 0
    delivered_bytes: int = 0
    feed_fills: int = 0
    replays: int = 0
    replayed_messages: int = 0
    sessions_restored: int = 0
    restores_missed: int = 0
    slow_disconnects: int = 0
    outbox_drops: int = 0
    remote_disconnects: int = 0
    app_calls: int = 0
    app_calls_failed: int = 0
    app_calls_retried: int = 0
    app_disconnects_dropped: int = 0
    gaps: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    publish_to_deliver: Histogram = field(default_factory=Histogram)
    loop_turns: Histogram = field(default_factory=Histogram)

    def counts(self) -> dict[str, int]:
        """The plain counters by name, in the order of their fields."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in values if isinstance(value, int)}

    def refused(self) -> dict[str, int]:
        """All refusals by reason: `refusals`, and the reasons with a separate counter."""
        return {
            **self.refusals,
            "auth": self.auth_failures,
            "commands": self.commands_failed,
            "drops": self.outbox_drops,
            "publications": self.publications_refused,
        }


# --- log summaries ----------------------------------------------------------------------------------------------------

SUMMARY_SECONDS = 10.0

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
    """Summarizes refusals for the log; only reads the counters.

    Call `due` about once a second. The first refusal after a quiet period is reported at once, later ones once a
    period.
    """

    def __init__(self, stats: Stats, now: float, period: float = SUMMARY_SECONDS) -> None:
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

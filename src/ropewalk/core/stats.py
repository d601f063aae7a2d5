"""The counters of a node. Plain integers on the hot path; exporters read them on request."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, fields

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
    """Counters since start, one field each; `gaps` and `refusals` are by reason, `publish_to_deliver` in seconds."""

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

    def counts(self) -> dict[str, int]:
        """The plain counters by name, in the order of their fields."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in values if isinstance(value, int)}

    def refused(self) -> dict[str, int]:
        """All refusals by reason: `refusals`, and those that have a counter of their own."""
        return {
            **self.refusals,
            "auth": self.auth_failures,
            "commands": self.commands_failed,
            "drops": self.outbox_drops,
            "publications": self.publications_refused,
        }

"""Keeps the numbers of a node's report that would cost a walk over all sessions, and rates.

Invariant: no step of the event loop counts more than one slice of sessions, however many there are.
"""

import asyncio
from collections.abc import Iterable, Mapping

from ropewalk.core.stats import Stats
from ropewalk.engine.session import Session
from ropewalk.model.report import SessionTotals

PERIOD = 5.0  # seconds between two samples
SLICE = 1000  # sessions; so many are counted in about a millisecond
RATES = ("connections_accepted", "commands", "publications", "deliveries", "delivered_bytes")


class Sampler:
    """`rates`: how fast some counters grew between the last two samples, per second."""

    def __init__(self, sessions: Mapping[str, "Session"], stats: Stats) -> None:
        self._sessions = sessions
        self._stats = stats
        self._totals = SessionTotals()
        self._sampled_at: float | None = None
        self._counts: Mapping[str, int] = {}
        self.rates: Mapping[str, float] = dict.fromkeys(RATES, 0.0)

    def totals(self) -> SessionTotals:
        """Counted now where the sessions are one slice; as of the last sample where they are more."""
        return self._count(self._sessions) if len(self._sessions) <= SLICE else self._totals

    async def sample(self, now: float) -> None:
        """Take a sample if one is due. Called about once a second; `now` is in seconds and never goes back."""
        if self._sampled_at is not None and now - self._sampled_at < PERIOD:
            return
        self._sample_rates(now)
        if len(self._sessions) > SLICE:
            self._totals = await self._walk()

    def _sample_rates(self, now: float) -> None:
        counts = {name: getattr(self._stats, name) for name in RATES}
        if self._sampled_at is not None and now > self._sampled_at:
            passed = now - self._sampled_at
            self.rates = {name: (count - self._counts[name]) / passed for name, count in counts.items()}
        self._counts, self._sampled_at = counts, now

    async def _walk(self) -> SessionTotals:
        sids = list(self._sessions)
        subscriptions = outbox_bytes = 0
        for start in range(0, len(sids), SLICE):
            part = self._count(sids[start : start + SLICE])
            subscriptions += part.subscriptions
            outbox_bytes += part.outbox_bytes
            await asyncio.sleep(0)
        return SessionTotals(subscriptions, outbox_bytes)

    def _count(self, sids: Iterable[str]) -> SessionTotals:
        """Those of them that are still there."""
        subscriptions = outbox_bytes = 0
        for sid in sids:
            session = self._sessions.get(sid)
            if session is not None:
                subscriptions += len(session.subscriptions)
                outbox_bytes += session.link.pending()
        return SessionTotals(subscriptions, outbox_bytes)

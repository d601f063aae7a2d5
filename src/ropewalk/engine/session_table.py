"""The sessions of a node: opening, live and departing ones.

Invariant: a remote disconnect applies to every session that began to open before it, and to none that began after it.
"""

import asyncio
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping

from ropewalk.core.stats import Stats
from ropewalk.engine.session import Session
from ropewalk.model.messages import RemoteDisconnect
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
        """Counted now if the sessions fit into one slice, otherwise from the last sample."""
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
        """Count those of them that are still live."""
        subscriptions = outbox_bytes = 0
        for sid in sids:
            session = self._sessions.get(sid)
            if session is not None:
                subscriptions += len(session.subscriptions)
                outbox_bytes += session.link.pending()
        return SessionTotals(subscriptions, outbox_bytes)


SID_BYTES = 16
AT_ONCE = 64
"""Ids made per system call: random bytes for many cost about as much as for one."""


class Sids:
    """New session ids: 128 random bits each, in 22 characters."""

    def __init__(self) -> None:
        self._made: list[str] = []

    def new(self) -> str:
        if not self._made:
            chance = secrets.token_bytes(SID_BYTES * AT_ONCE)
            self._made = [_sid(chance[start : start + SID_BYTES]) for start in range(0, len(chance), SID_BYTES)]
        return self._made.pop()


def _sid(chance: bytes) -> str:
    return urlsafe_b64encode(chance).rstrip(b"=").decode()


class SessionTable:
    """Sessions by sid. Opening ones are not authenticated yet. A client that resumes a departing session waits for it."""

    def __init__(self) -> None:
        self.opening: dict[str, Session] = {}
        self.live: dict[str, Session] = {}
        self.departing: dict[str, Session] = {}
        self.revocations = Revocations()

    def begin(self, session: Session) -> None:
        self.opening[session.sid] = session
        self.revocations.opening(session.sid)

    def opened(self, session: Session) -> None:
        """Known, refused or gone."""
        self.opening.pop(session.sid, None)
        self.revocations.opened(session.sid)


class Revocations:
    """Remote disconnects that arrived while sessions were opening and their identity was not known yet. Each is kept until
    all of those sessions have opened."""

    __slots__ = ("_count", "_openings", "_requests")

    def __init__(self) -> None:
        self._count = 0
        self._openings: dict[str, int] = {}  # sid → number of earlier requests; oldest first
        self._requests: dict[str, tuple[int, RemoteDisconnect]] = {}  # by identifier; oldest first

    def opening(self, sid: str) -> None:
        self._openings[sid] = self._count

    def opened(self, sid: str) -> None:
        """Known, refused or gone."""
        self._openings.pop(sid, None)
        oldest = next(iter(self._openings.values()), self._count)
        while self._requests:
            identifier, (number, _) = next(iter(self._requests.items()))
            if number > oldest:
                break
            del self._requests[identifier]

    def add(self, request: RemoteDisconnect) -> None:
        if self._openings:
            self._count += 1
            self._requests.pop(request.identifier, None)
            self._requests[request.identifier] = (self._count, request)

    def find(self, sid: str, ids: str) -> RemoteDisconnect | None:
        """The request that arrived for these ids since this session began to open."""
        found = self._requests.get(ids)
        if found is None or sid not in self._openings or found[0] <= self._openings[sid]:
            return None
        return found[1]

    def __len__(self) -> int:
        return len(self._requests)

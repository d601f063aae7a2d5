"""The backend of the store process where Redis or NATS keeps everything: the same, but sessions that are over are left to the
workers, which have the application that has to hear of it.
"""

from ropewalk.model.sessions import SessionSnapshot
from ropewalk.ports import Backend, Feed, Leases, PresenceStore, RecordQueue, SessionStore, StreamStore


class SessionsOfWorkers:
    """Implements `ports.SessionStore`."""

    def __init__(self, sessions: SessionStore) -> None:
        self.save, self.peek, self.take = sessions.save, sessions.peek, sessions.take

    async def revoke(self, ids: str, reconnect: bool) -> list[tuple[str, SessionSnapshot]]:
        """Every worker obeys the same order."""
        return []

    async def take_expired(self, limit: int) -> list[tuple[str, SessionSnapshot]]:
        return []

    async def take_abandoned(self) -> list[tuple[str, SessionSnapshot]]:
        return []


class BackendBesideEngine:
    """Implements `ports.Backend`."""

    def __init__(self, engine: Backend) -> None:
        self._engine = engine
        self.sessions: SessionStore = SessionsOfWorkers(engine.sessions)
        self.start, self.stop, self.sweep = engine.start, engine.stop, engine.sweep
        self.health, self.reload_rules, self.gauges = engine.health, engine.reload_rules, engine.gauges

    @property
    def streams(self) -> StreamStore:
        return self._engine.streams

    @property
    def presence(self) -> PresenceStore:
        return self._engine.presence

    @property
    def feed(self) -> Feed:
        return self._engine.feed

    @property
    def leases(self) -> Leases | None:
        return self._engine.leases

    @property
    def record_queue(self) -> RecordQueue | None:
        return self._engine.record_queue

"""The backend of the store process itself: its own node has no clients, and reaches the store by calls.

Invariant: its messages reach the workers like all others. Ended sessions are left to the workers, which report them to the
application.
"""

from ropewalk.adapters.backends.memory.store import NodePresence, NodeSessions
from ropewalk.adapters.backends.workers.feed import WorkerFeed
from ropewalk.adapters.backends.workers.link import FeedReceiver
from ropewalk.adapters.backends.workers.server import LocalWorker, StoreServer
from ropewalk.adapters.backends.workers.store import SharedStore
from ropewalk.model.sessions import SessionSnapshot
from ropewalk.ports import (
    Backend,
    Deliver,
    Feed,
    Leases,
    OnDisconnectRequest,
    OnMissed,
    PresenceStore,
    RecordQueue,
    SessionStore,
    StreamStore,
    ignore_missed,
)


class SessionsOfWorkers:
    """Implements `ports.SessionStore`."""

    def __init__(self, sessions: SessionStore) -> None:
        self.save, self.peek, self.take = sessions.save, sessions.peek, sessions.take

    async def revoke(self, ids: str, reconnect: bool) -> list[tuple[str, SessionSnapshot]]:
        """Every worker receives the same request."""
        return []

    async def take_expired(self, limit: int) -> list[tuple[str, SessionSnapshot]]:
        return []

    async def take_abandoned(self) -> list[tuple[str, SessionSnapshot]]:
        return []


class BackendBesideEngine:
    """The backend of the store process if Redis, NATS or a ring keeps everything. Ended sessions are left to the workers, which
    have the application."""

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


NAME = "store"


class StoreFeed(WorkerFeed):
    async def start(self, deliver: Deliver, obey: OnDisconnectRequest, missed: OnMissed = ignore_missed) -> None:
        """This process has no clients."""


class StoreBackend:
    """Implements `ports.Backend`."""

    leases = None
    record_queue = None

    def __init__(self, store: SharedStore, server: StoreServer) -> None:
        receiver = FeedReceiver()
        own = LocalWorker(NAME, receiver)
        server.attach(store)
        server.join(own)
        self.streams = store.streams
        self.sessions = SessionsOfWorkers(NodeSessions(store, NAME))
        self.presence = NodePresence(store, NAME)
        self.feed = StoreFeed(own, receiver)
        self.recover, self.stop, self.sweep = store.recover, store.stop, store.sweep
        self.reload_rules, self.gauges = store.reload_rules, store.gauges

    async def start(self) -> None: ...

    def health(self) -> str:
        return ""

"""The backend of the store process itself: its own node has no clients, and reaches the store by calls.

Invariant: whatever it registers goes to the workers like everything else. Sessions that are over are left to the workers, which
have the application that has to hear of it.
"""

from collections.abc import Callable, Sequence

from ropewalk.adapters.backends.workers import wire
from ropewalk.adapters.backends.workers.server import StoreServer
from ropewalk.adapters.backends.workers.store import NodePresence, NodeSessions, SharedStore
from ropewalk.model.messages import Registered, RemoteDisconnect, TransientRun
from ropewalk.model.sessions import SessionSnapshot
from ropewalk.ports import (
    Backend,
    Deliver,
    Feed,
    Leases,
    OnDisconnectRequest,
    PresenceStore,
    RecordQueue,
    SessionStore,
    StreamStore,
)


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


class StoreFeed:
    """Implements `ports.Feed`."""

    exact = True
    reports_losses = True

    def __init__(self, server: StoreServer) -> None:
        self._server = server

    async def start(self, deliver: Deliver, obey: OnDisconnectRequest, missed: Callable[[], None] = lambda: None) -> None:
        """Nobody listens in this process."""

    async def stop(self) -> None: ...

    async def listen(self, stream: str) -> None: ...

    def unlisten(self, stream: str) -> None: ...

    def publish(self, messages: Sequence[Registered]) -> None:
        self._server.carry(messages)

    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> None:
        self._server.carry_runs([wire.carried(run) for run in runs])

    async def disconnect(self, request: RemoteDisconnect) -> int:
        return await self._server.command(request)

    def health(self) -> str:
        return ""


class StoreSessions(NodeSessions):
    async def take_expired(self, limit: int) -> list[tuple[str, SessionSnapshot]]:
        return []

    async def take_abandoned(self) -> list[tuple[str, SessionSnapshot]]:
        return []


class StoreBackend:
    """Implements `ports.Backend`."""

    leases = None
    record_queue = None

    def __init__(self, store: SharedStore, server: StoreServer) -> None:
        self._store = store
        self.streams = store.memory.streams
        self.sessions = StoreSessions(store, NAME)
        self.presence = NodePresence(store, NAME)
        self.feed = StoreFeed(server)
        self.recover = store.recover

    async def start(self) -> None: ...

    async def stop(self) -> None:
        await self._store.memory.stop()
        if self._store.interrupted is not None:
            self._store.interrupted.settle(at_once=True)  # all workers are gone

    def health(self) -> str:
        return ""

    async def sweep(self) -> None:
        await self._store.sweep()

    def reload_rules(self) -> None:
        self._store.memory.reload_rules()

    def gauges(self) -> dict[str, float]:
        return self._store.gauges()

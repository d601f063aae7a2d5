"""The backend of a worker: the store process of its node, over the bus. And the backend of the store process itself.

Invariant: nothing is lost while the connection stands. After a lost connection the worker listens again to all its streams, and
readers look for missed messages.
"""

from collections.abc import Awaitable, Sequence

from ropewalk.adapters.backends.memory.store import NodePresence, NodeSessions
from ropewalk.adapters.backends.workers import wire
from ropewalk.adapters.backends.workers.link import (
    ANSWER_SECONDS,
    AWAY,
    RECONNECT_SECONDS,
    Caller,
    FeedReceiver,
    StoreLink,
    dial_socket,
    remote,
)
from ropewalk.adapters.backends.workers.server import LocalWorker, StoreServer
from ropewalk.adapters.backends.workers.store import SharedStore
from ropewalk.model.journal import Row, RowKind
from ropewalk.model.messages import Registered, RemoteDisconnect, TransientRun
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

MAX_ROWS = 10_000
"""Rows about sessions that wait for a store that is being started again."""

MAX_UNANSWERED = 64 * 1024
"""Bytes of runs that are sent before the worker waits for an answer."""

LISTENED_AT_ONCE = 10_000
ENDED_AT_ONCE = 1000


class WorkerStreams(StreamStore):
    confirms_transient = True
    resolves_unanswered = True
    """An append is unanswered only if the store process dies. Its outcome cannot be determined then."""

    instant = False

    def __init__(self, caller: Caller) -> None:
        self._caller = caller


class WorkerSessions(SessionStore, Leases):
    same_host = True

    def __init__(self, link: StoreLink) -> None:
        self._caller = link

    async def take_abandoned(self) -> list[tuple[str, SessionSnapshot]]:
        ended: list[tuple[str, SessionSnapshot]] = []
        while some := await self._caller.call("abandoned", ENDED_AT_ONCE, self._caller.server_ends):
            ended += some
        return ended


class WorkerPresence(PresenceStore):
    def __init__(self, caller: Caller) -> None:
        self._caller = caller


class WorkerFeed:
    """Implements `ports.Feed` and `ports.PrefixFeed`."""

    exact = False
    reports_losses = True

    def __init__(self, caller: Caller, receiver: FeedReceiver) -> None:
        self._caller = caller
        self._receiver = receiver
        self._listening: set[str] = set()
        self._prefixes: set[bytes] = set()
        self._missed: OnMissed = ignore_missed
        self._unanswered_bytes = 0

    async def start(self, deliver: Deliver, obey: OnDisconnectRequest, missed: OnMissed = ignore_missed) -> None:
        self._missed = missed
        self._receiver.start(deliver, obey)

    async def stop(self) -> None:
        self._receiver.stop()

    async def listen(self, stream: str) -> None:
        self._listening.add(stream)
        await self._caller.call("listen", [stream])

    def unlisten(self, stream: str) -> None:
        self._listening.discard(stream)
        self._caller.note("unlisten", stream)

    async def listen_prefix(self, prefix: bytes) -> None:
        self._prefixes.add(prefix)
        await self._caller.call("listen_prefixes", [prefix])

    def unlisten_prefix(self, prefix: bytes) -> None:
        self._prefixes.discard(prefix)
        self._caller.note("unlisten_prefix", prefix)

    def publish(self, messages: Sequence[Registered]) -> None:
        self._caller.note("publish", messages)

    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> Awaitable[None] | None:
        """Unacknowledged up to a limit, then one acknowledged call, which is answered when the workers are not behind. So a
        fast publisher waits for them, and a slow one does not."""
        carried = [wire.carried(run) for run in runs]
        self._unanswered_bytes += sum([len(run.frame) for run in runs])
        if not confirm and self._unanswered_bytes < MAX_UNANSWERED and self._caller.note("publish_runs", carried):
            return None
        self._unanswered_bytes = 0
        return self._caller.call("publish_runs", carried)

    async def disconnect(self, request: RemoteDisconnect) -> int:
        ended: int = await self._caller.call("disconnect_all", request)
        return ended

    def health(self) -> str:
        return ""

    async def listen_again(self, link: StoreLink) -> None:
        """On a new connection."""
        streams = list(self._listening)
        for begin in range(0, len(streams), LISTENED_AT_ONCE):
            await link.again("listen", streams[begin : begin + LISTENED_AT_ONCE])
        if self._prefixes:
            await link.again("listen_prefixes", list(self._prefixes))
        self._missed()


class WorkerJournal:
    """Implements `ports.Journal` for the session log of a worker: the store process has the journal. Rows of sessions are
    sent in order, without waiting."""

    instant = True

    def __init__(self, link: StoreLink) -> None:
        self._link = link
        self._waiting: list[Row] = []
        self._dropped = 0
        self._sids: set[str] = set()
        """Live sessions of this worker, according to the rows."""

    async def write(self, rows: Sequence[Row]) -> None:
        self.write_nowait(rows)

    def write_nowait(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.kind is RowKind.CONNECTED or row.kind is RowKind.RESTORED:
                self._sids.add(row.sid)
            elif row.kind is RowKind.DISCONNECTED:
                self._sids.discard(row.sid)
        if self._link.note("rows", rows):
            return
        room = MAX_ROWS - len(self._waiting)
        self._waiting += rows[:room]
        self._dropped += max(0, len(rows) - room)

    async def resend(self) -> None:
        """Send the sessions of this worker, and the rows that could not be sent, to a store that may not know them."""
        await self._link.again("claim", list(self._sids))
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._link.note_again("rows", waiting)

    def health(self) -> str:
        return ""

    def gauges(self) -> dict[str, float]:
        return {"journal_unsent_rows": self._dropped}


class WorkerBackend:
    """Implements `ports.Backend`. `path` is that of the bus; `name` is that of this process, and of no other before or after
    it."""

    record_queue = None

    def __init__(
        self, path: str, name: str, patience: float = RECONNECT_SECONDS, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        receiver = FeedReceiver()
        self.link = link = StoreLink(dial_socket(path), name, receiver, self._greet, patience, answer_seconds)
        self.streams = remote(WorkerStreams, link)
        self.sessions = self.leases = remote(WorkerSessions, link)
        self.presence = remote(WorkerPresence, link)
        self.feed = WorkerFeed(link, receiver)
        self.journal = WorkerJournal(link)

    async def start(self) -> None:
        await self.link.start()

    async def stop(self) -> None:
        await self.link.stop()

    async def _greet(self, first: bool) -> None:
        if not first:
            await self.journal.resend()
            await self.feed.listen_again(self.link)

    def health(self) -> str:
        return "" if self.link.connected else AWAY

    async def sweep(self) -> None:
        """The store process does it."""

    def reload_rules(self) -> None:
        """The store process reads them too."""

    def gauges(self) -> dict[str, float]:
        """The store process reports them."""
        return {}


# --- of the store process itself ---------------------------------------------------------------------------------------


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

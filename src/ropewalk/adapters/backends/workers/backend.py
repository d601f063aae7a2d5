"""The backend of a worker: the store process of its node, over the bus."""

from collections.abc import Sequence

from ropewalk.adapters.backends.workers.feed import WorkerFeed
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
from ropewalk.model.journal import Row, RowKind
from ropewalk.model.sessions import SessionSnapshot
from ropewalk.ports import Leases, PresenceStore, SessionStore, StreamStore

MAX_ROWS = 10_000
"""Rows about sessions that wait for a store that is being started again."""

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

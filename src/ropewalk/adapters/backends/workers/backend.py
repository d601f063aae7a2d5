"""The backend of a worker: the store process of its node, over the bus.

Invariant: while the connection stands nothing of the feed is lost. After it was down the worker listens anew to everything that
it wants to hear, and its readers look for what they have missed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

from ropewalk.adapters.backends.workers import wire
from ropewalk.adapters.backends.workers.link import ANSWER_SECONDS, AWAY, PATIENCE, StoreLink
from ropewalk.model.history import Gap, HistoryPage, Replay, StreamSummary
from ropewalk.model.journal import Row, RowKind
from ropewalk.model.messages import Position, Publication, Receipt, Registered, RemoteDisconnect, TransientRun
from ropewalk.model.presence import Member, PresenceEvent, PresencePage
from ropewalk.model.sessions import Renewal, SessionSnapshot, SessionTaken, SessionWrite
from ropewalk.ports import Deliver, OnDisconnectRequest

MAX_ROWS = 10_000
"""Rows about sessions that wait for a store that is being started again."""

MAX_UNANSWERED = 64 * 1024
"""Bytes of runs that are handed over before an answer is waited for."""

LISTENED_AT_ONCE = 10_000
ENDED_AT_ONCE = 1000


class WorkerStreams:
    """Implements `ports.StreamStore`."""

    confirms_transient = True
    resolves_unanswered = True
    """Only a store process that ends leaves an append unanswered. As with a server that ends, nobody can tell then."""

    instant = False

    def __init__(self, link: StoreLink) -> None:
        self._link = link

    async def append(self, publications: Sequence[Publication]) -> list[Receipt]:
        receipts: list[Receipt] = await self._link.call("append", publications)
        return receipts

    async def replay(self, stream: str, position: Position) -> Replay | Gap:
        return wire.history(await self._link.call("replay", stream, position))

    async def since(self, stream: str, timestamp: float) -> Replay | Gap:
        return wire.history(await self._link.call("since", stream, timestamp))

    async def tip(self, stream: str) -> Position:
        tip: Position = await self._link.call("tip", stream)
        return tip

    async def partition_key(self, stream: str) -> str:
        key: str = await self._link.call("partition_key", stream)
        return key

    async def summaries(self, after: str, limit: int) -> list[StreamSummary]:
        found: list[StreamSummary] = await self._link.call("summaries", after, limit)
        return found

    async def page(self, stream: str, after: int, limit: int) -> HistoryPage | None:
        page: HistoryPage | None = await self._link.call("page", stream, after, limit)
        return page


class WorkerSessions:
    """Implements `ports.SessionStore` and `ports.Leases`."""

    same_host = True

    def __init__(self, link: StoreLink) -> None:
        self._link = link

    async def save(self, sid: str, snapshot: SessionSnapshot, ttl: float) -> None:
        await self._link.call("save", sid, snapshot, ttl)

    async def peek(self, sid: str) -> SessionSnapshot | None:
        snapshot: SessionSnapshot | None = await self._link.call("peek", sid)
        return snapshot

    async def take(self, sid: str, successor: str = "") -> SessionSnapshot | None:
        snapshot: SessionSnapshot | None = await self._link.call("take", sid, successor)
        return snapshot

    async def revoke(self, ids: str, reconnect: bool) -> list[tuple[str, SessionSnapshot]]:
        revoked: list[tuple[str, SessionSnapshot]] = await self._link.call("revoke", ids, reconnect)
        return revoked

    async def take_expired(self, limit: int) -> list[tuple[str, SessionSnapshot]]:
        expired: list[tuple[str, SessionSnapshot]] = await self._link.call("expired", limit)
        return expired

    async def take_abandoned(self) -> list[tuple[str, SessionSnapshot]]:
        ended: list[tuple[str, SessionSnapshot]] = []
        while some := await self._link.call("abandoned", ENDED_AT_ONCE, self._link.server_ends):
            ended += some
        return ended

    async def renew(self, ttl: float, received: Collection[str]) -> Renewal:
        renewal: Renewal = await self._link.call("renew", ttl, list(received))
        return renewal

    async def write(self, sessions: Sequence[SessionWrite]) -> list[SessionTaken]:
        taken: list[SessionTaken] = await self._link.call("write", sessions)
        return taken


class WorkerPresence:
    """Implements `ports.PresenceStore`."""

    def __init__(self, link: StoreLink) -> None:
        self._link = link

    async def join(self, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        events: list[PresenceEvent] = await self._link.call("join", stream, sid, member)
        return events

    async def leave(self, stream: str, sid: str) -> list[PresenceEvent]:
        events: list[PresenceEvent] = await self._link.call("leave", stream, sid)
        return events

    async def detach(self, sid: str, ttl: float) -> None:
        await self._link.call("detach", sid, ttl)

    async def adopt(self, old_sid: str, new_sid: str) -> dict[str, Member]:
        held: dict[str, Member] = await self._link.call("adopt", old_sid, new_sid)
        return held

    async def expire(self) -> list[PresenceEvent]:
        events: list[PresenceEvent] = await self._link.call("expire")
        return events

    async def members(self, stream: str, after: str, limit: int) -> PresencePage:
        page: PresencePage = await self._link.call("members", stream, after, limit)
        return page


async def _nobody_ended(order: object) -> int:
    return 0


class WorkerFeed:
    """Implements `ports.Feed` and `ports.PrefixFeed`."""

    exact = False
    reports_losses = True

    def __init__(self, link: StoreLink) -> None:
        self._link = link
        self._listening: set[str] = set()
        self._prefixes: set[bytes] = set()
        self._obey: OnDisconnectRequest | None = None
        self._missed: Callable[[], None] = lambda: None
        self._obeying: set[asyncio.Future[int]] = set()
        self._unanswered_bytes = 0
        self._hear_nothing()

    async def start(self, deliver: Deliver, obey: OnDisconnectRequest, missed: Callable[[], None] = lambda: None) -> None:
        self._obey, self._missed = obey, missed
        self._link.notes.update(
            deliver=deliver, runs=lambda runs: deliver([wire.run_of(run) for run in runs]), order=self._take_order
        )
        self._link.calls.update(obey=obey, release=obey)

    async def stop(self) -> None:
        self._hear_nothing()

    def _hear_nothing(self) -> None:
        """The link may stand before this feed is started, and stays for a moment when it is stopped. There are no sessions
        then, so that an order ends none."""
        self._link.notes.update(deliver=lambda messages: None, runs=lambda runs: None, order=lambda order: None)
        self._link.calls.update(obey=_nobody_ended, release=_nobody_ended)

    async def listen(self, stream: str) -> None:
        self._listening.add(stream)
        await self._link.call("listen", [stream])

    def unlisten(self, stream: str) -> None:
        self._listening.discard(stream)
        self._link.note("unlisten", stream)

    async def listen_prefix(self, prefix: bytes) -> None:
        self._prefixes.add(prefix)
        await self._link.call("listen_prefixes", [prefix])

    def unlisten_prefix(self, prefix: bytes) -> None:
        self._prefixes.discard(prefix)
        self._link.note("unlisten_prefix", prefix)

    def publish(self, messages: Sequence[Registered]) -> None:
        self._link.note("tell", messages)

    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> Awaitable[None] | None:
        """After some notes a call, which is answered when those who deliver are not behind: so whoever brings many waits for
        them, and whoever brings one does not."""
        carried = [wire.carried(run) for run in runs]
        self._unanswered_bytes += sum([len(run.frame) for run in runs])
        if not confirm and self._unanswered_bytes < MAX_UNANSWERED and self._link.note("run", carried):
            return None
        self._unanswered_bytes = 0
        return self._link.call("run", carried)

    async def disconnect(self, request: RemoteDisconnect) -> int:
        ended: int = await self._link.call("command", request)
        return ended

    def health(self) -> str:
        return ""

    async def listen_anew(self) -> None:
        streams = list(self._listening)
        for begin in range(0, len(streams), LISTENED_AT_ONCE):
            await self._link.again("listen", streams[begin : begin + LISTENED_AT_ONCE])
        if self._prefixes:
            await self._link.again("listen_prefixes", list(self._prefixes))
        self._missed()

    def _take_order(self, order: SessionTaken) -> None:
        assert self._obey is not None
        task = asyncio.ensure_future(self._obey(order))
        self._obeying.add(task)
        task.add_done_callback(self._obeying.discard)


class WorkerJournal:
    """Implements `ports.Journal` for the session log of a worker: the store process has the journal. Rows of sessions are
    handed over in order; nobody waits for them."""

    instant = True

    def __init__(self, link: StoreLink) -> None:
        self._link = link
        self._waiting: list[Row] = []
        self._dropped = 0
        self._sids: set[str] = set()
        """Sessions that live here, as far as rows say."""

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
        """To a store that may know nothing of this worker: what it has, and what it could not say."""
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

    def __init__(self, path: str, name: str, patience: float = PATIENCE, answer_seconds: float = ANSWER_SECONDS) -> None:
        self.link = StoreLink(path, name, patience, answer_seconds)
        self.streams = WorkerStreams(self.link)
        self.sessions = self.leases = WorkerSessions(self.link)
        self.presence = WorkerPresence(self.link)
        self.feed = WorkerFeed(self.link)
        self.journal = WorkerJournal(self.link)
        self.link.back = self._come_back

    async def start(self) -> None:
        await self.link.start()

    async def stop(self) -> None:
        await self.link.stop()

    async def _come_back(self) -> None:
        await self.journal.resend()
        await self.feed.listen_anew()

    def health(self) -> str:
        return "" if self.link.connected else AWAY

    async def sweep(self) -> None:
        """The store process does it."""

    def reload_rules(self) -> None:
        """The store process reads them too."""

    def gauges(self) -> dict[str, float]:
        """The store process tells them."""
        return {}

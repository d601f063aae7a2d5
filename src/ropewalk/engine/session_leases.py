"""Keeps sessions in a store that several nodes share (`ports.Leases`), so that they outlive their node.

Changes of the live sessions are written in batches, after `WRITE_SECONDS`, or at once to a store on the same host. One lease
covers all sessions of the node. A node that crashes loses its unwritten changes: sessions that began in the last
`WRITE_SECONDS`, and changes of older ones in that time (subscriptions, memberships, the application's state).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

from ropewalk.core.lifecycle import SessionState
from ropewalk.engine.context import EngineContext
from ropewalk.engine.disconnect_queue import DisconnectQueue
from ropewalk.engine.persistent_presence import BETWEEN_ATTEMPTS, PersistentPresence, persist
from ropewalk.engine.session import Session
from ropewalk.engine.session_keeping import SessionKeeper
from ropewalk.engine.session_log import SessionLog
from ropewalk.engine.session_table import SessionTable
from ropewalk.engine.subscription import Subscription
from ropewalk.model import closing as closings
from ropewalk.model.errors import Unavailable
from ropewalk.model.messages import RemoteDisconnect
from ropewalk.model.presence import Member, PresenceEvent
from ropewalk.model.sessions import SessionSnapshot, SessionTaken, SessionWrite
from ropewalk.ports import Backend, Leases

logger = logging.getLogger("ropewalk.session")

WRITE_SECONDS = 0.1
"""How long changes are collected before a write to a store on another host."""

MAX_BATCH_SESSIONS = 500
"""Sessions in one write."""

MAX_PENDING_DEPARTURES = 100_000
"""Departed sessions that may wait for a store that is down. Further ones are not written: in such a long outage the lease
expires, and the store treats this node's sessions as abandoned."""

FIRST_WRITE_SECONDS = 1.0
"""Timeout of a new client's wait until a store on the same host has its session."""

LEASE_SECONDS = 6.0
RENEW_SECONDS = 2.0

GONE_SECONDS = 50.0
"""Stores remember for a few seconds longer than this that a session was taken or has ended."""


class _Departure:
    """The last write of a session. `ttl` is called at the write, because the session may be revoked until then."""

    __slots__ = ("done", "snapshot", "ttl")

    def __init__(self, snapshot: SessionSnapshot, ttl: Callable[[], float]) -> None:
        self.snapshot = snapshot
        self.ttl = ttl
        self.done: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def resolve(self, ttl: float) -> None:
        if not self.done.done():
            self.done.set_result(ttl)


class LeasedSessionKeeper(SessionKeeper):
    """Makes one write at a time, so that the writes of a session keep their order."""

    shared = True

    def __init__(
        self,
        context: EngineContext,
        backend: Backend,
        leases: Leases,
        presence: PersistentPresence,
        disconnect_queue: DisconnectQueue,
        table: SessionTable,
    ) -> None:
        super().__init__(context, backend, presence, disconnect_queue, table)
        tasks, clock, chance = context.tasks, context.clock, context.chance
        self._leases = leases
        self._write_delay = 0.0 if leases.same_host else WRITE_SECONDS
        self._persistent = presence
        self._tasks = tasks
        self._clock = clock
        self._chance = chance
        self._since: dict[str, float | None] = {}  # start of each session here; None: another node may have taken it
        self._began: dict[str, float] = {}  # start of the sessions that were never stored, as far as is known
        self._changed: dict[str, Session] = {}
        self._leaving: dict[str, _Departure] = {}
        self._taken: set[str] = set()  # departing sessions that the store has removed
        self._awaited: dict[str, asyncio.Future[None]] = {}  # resolved when the session is written
        self._over: set[str] = set()  # departing sessions whose end is still to be reported to the application
        self._received: tuple[str, ...] = ()  # sids of the last renewal, confirmed with the next
        self._renewed_at = clock()
        self._renew_now = asyncio.Event()
        self._version = 0
        self._writing = False

    def start(self) -> None:
        self._tasks.spawn(self._keep_lease())

    # --- while it lives -----------------------------------------------------------------------------------------------

    def began(self, session: "Session") -> None:
        self._began[session.sid] = self._clock()
        self.changed(session)

    def changed(self, session: "Session") -> None:
        """The session has changed in a way that its snapshot shows."""
        if _outlives_node(session) and session.state is SessionState.LIVE:
            self._since.setdefault(session.sid, self._clock())
            self._changed[session.sid] = session
            self._write_soon()

    def ended(self, sid: str) -> None:
        self._began.pop(sid, None)

    def stored(self, session: "Session") -> bool:
        return _outlives_node(session) and session.sid not in self._began

    async def wait_stored(self, session: "Session") -> None:
        """The client may reconnect to another node before the background write."""
        if self._leases.same_host and session.extended and self._limits.sessions_ttl > 0 and session.sid in self._changed:
            written = self._awaited[session.sid] = asyncio.get_running_loop().create_future()
            await asyncio.wait([written], timeout=FIRST_WRITE_SECONDS)
            self._awaited.pop(session.sid, None)

    def needs_departure(self, session: "Session") -> bool:
        return _outlives_node(session) or super().needs_departure(session)

    def end_taken(self, notice: SessionTaken) -> int:
        """End the session, and write its departure with a TTL of 0. The store refuses that write, unless it lost its data after
        the notice: this node may then have stored the session again, and the write removes it."""
        session = self._sessions.get(notice.sid) or self._departing.get(notice.sid)
        if session is None:
            return 0
        session.end(closings.remote_closing(notice) if notice.revoked else closings.TAKEN_OVER)
        session.keeping = False
        return 1

    def _refused(self, notice: SessionTaken) -> None:
        """The store refused to write a session: end it, and do not write it again."""
        if self.end_taken(notice):
            self._taken.add(notice.sid)
            if (departure := self._leaving.pop(notice.sid, None)) is not None:
                departure.resolve(departure.ttl())

    def _write_soon(self) -> None:
        if not self._writing:
            self._writing = True
            self._tasks.spawn(self._write())

    async def _write(self) -> None:
        failures = 0
        while self._changed or self._leaving:
            await asyncio.sleep(BETWEEN_ATTEMPTS.delay(failures - 1, self._chance) if failures else self._write_delay)
            changed, leaving, batch = self._batch()
            try:
                taken = await self._leases.write(batch) if batch else []
            except Exception as error:  # the batch must be kept after any error
                failures += 1
                level = logging.DEBUG if isinstance(error, Unavailable) else logging.ERROR
                logger.log(level, "sessions are not written yet", extra={"reason": str(error), "failures": failures})
                self._changed = {**changed, **self._changed}
                self._leaving = {**leaving, **self._leaving}
                continue
            failures = 0
            self._written(batch, leaving, taken)
        self._writing = False

    def _batch(self) -> tuple[dict[str, "Session"], dict[str, _Departure], list[SessionWrite]]:
        leaving = {sid: self._leaving.pop(sid) for sid in list(self._leaving)[:MAX_BATCH_SESSIONS]}
        changed = {sid: self._changed.pop(sid) for sid in list(self._changed)[: MAX_BATCH_SESSIONS - len(leaving)]}
        batch = [
            SessionWrite(sid, departure.snapshot, self._next(), departure.ttl(), False, self._began.get(sid))
            for sid, departure in leaving.items()
        ]
        batch += [
            SessionWrite(sid, session.snapshot(), self._next(), self._time_away(session), True, self._began.get(sid))
            for sid, session in changed.items()
            if session.state is SessionState.LIVE
        ]
        return changed, leaving, batch

    def _next(self) -> int:
        self._version += 1
        return self._version

    def _time_away(self, session: "Session") -> float:
        return self._limits.sessions_ttl if session.extended else 0.0

    def _written(self, batch: list[SessionWrite], leaving: dict[str, _Departure], taken: list[SessionTaken]) -> None:
        refused = {notice.sid: notice for notice in taken}
        for write in batch:
            self._began.pop(write.sid, None)
            notice, departure = refused.get(write.sid), leaving.get(write.sid)
            if notice is not None and not notice.stored:
                if not notice.revoked and self._write_as_new(write.sid, departure):
                    continue
                if notice.revoked:  # before its first write, so no other node reports its end
                    self._disconnect_queue.put(write.sid, write.snapshot)
            if (awaited := self._awaited.pop(write.sid, None)) is not None:
                awaited.set_result(None)
            if departure is not None:
                departure.resolve(write.ttl)
            if notice is not None:
                self._refused(notice)
            elif self._since.get(write.sid, 0.0) is None:
                self._since[write.sid] = self._clock()  # the write succeeded, so no other node has taken it

    def _write_as_new(self, sid: str, departure: _Departure | None) -> bool:
        """Write a session again whose record the store has lost. False if the record that it was taken may have expired."""
        since = self._since.get(sid)
        if since is None or self._clock() >= self._renewed_at + GONE_SECONDS:
            return False
        self._began[sid] = since
        if departure is not None:
            self._leaving[sid] = departure
        elif (session := self._sessions.get(sid)) is not None:
            self._changed[sid] = session
        return True

    # --- the lease ----------------------------------------------------------------------------------------------------

    async def _keep_lease(self) -> None:
        failures = 0
        while True:
            self._renew_now.clear()
            try:
                await self.renew()
                failures = 0
            except Unavailable as error:
                failures += 1
                level = logging.WARNING if failures == 1 else logging.DEBUG
                logger.log(level, "the lease of this node is not renewed", extra={"reason": str(error)})
            with suppress(TimeoutError):
                async with asyncio.timeout(BETWEEN_ATTEMPTS.delay(failures, self._chance) if failures else RENEW_SECONDS):
                    await self._renew_now.wait()

    def on_store_interrupted(self) -> None:
        self._renew_now.set()

    async def renew(self) -> None:
        """Raises `Unavailable`."""
        asked_at = self._clock()
        renewal = await self._leases.renew(LEASE_SECONDS, self._received)
        self._received = tuple(notice.sid for notice in renewal.taken)
        for notice in renewal.taken:
            self.end_taken(notice)
        if renewal.lease != self._persistent.lease:
            # The lease expired, or the store lost its data. Write all sessions again under the new lease. A session without a
            # record is written as new, unless the last renewal is so long ago that the store's record that it was taken, or
            # has ended, may have expired.
            self._persistent.lease = renewal.lease
            if asked_at >= self._renewed_at + GONE_SECONDS:
                self._since = dict.fromkeys(self._since)
            for session in list(self._sessions.values()):
                self.changed(session)
                if session.sid in self._changed and (since := self._since[session.sid]) is not None:
                    self._began.setdefault(session.sid, since)
                for stream in session.members or ():
                    self._persistent.reconcile(session, stream)
        self._renewed_at = asked_at

    # --- departures ---------------------------------------------------------------------------------------------------

    async def depart(self, session: "Session") -> None:
        """Write the session to the store, even if it cannot be resumed: the node that takes the expired session reports it to
        the application. A session that another node has taken is not written."""
        self._changed.pop(session.sid, None)
        if _outlives_node(session):
            await self._leave(session)
        else:
            self._disconnect_queue.put(session.sid, session.snapshot())
        self._taken.discard(session.sid)
        if session.sid in self._over:
            self._over.discard(session.sid)
            self._disconnect_queue.put(session.sid, session.snapshot())
        self._began.pop(session.sid, None)
        self._since.pop(session.sid, None)
        if session.members:
            await self._presence.detach(session.sid, self._limits.presence_ttl)

    def on_revoked(self, session: "Session", snapshot: SessionSnapshot) -> None:
        """Report the end to the application; for a departing session after its pending calls, with their changes."""
        if session.sid in self._departing:
            self._taken.add(session.sid)
            self._over.add(session.sid)
        else:
            self._disconnect_queue.put(session.sid, session.snapshot())

    async def _leave(self, session: "Session") -> None:
        while session.sid not in self._taken:
            if len(self._leaving) >= MAX_PENDING_DEPARTURES:
                logger.error("departed session is not written: too many are pending", extra={"session": session.tag})
                return
            departure = self._leaving[session.sid] = _Departure(session.snapshot(), lambda: self._time_left(session))
            self._write_soon()
            if await departure.done == self._time_left(session):  # otherwise it was revoked during the write
                return

    def _time_left(self, session: "Session") -> float:
        return self._limits.sessions_ttl if session.keeping else 0.0

    # --- resumed sessions ---------------------------------------------------------------------------------------------

    async def put_back(self, former: str, successor: str, snapshot: SessionSnapshot, revoked: bool) -> None:
        """Nothing to undo without a revocation: `successor` was never written as live, so `former` can still be taken."""
        if not revoked:
            return
        departure = self._leaving[successor] = _Departure(snapshot, lambda: 0.0)
        self._write_soon()
        await departure.done

    async def _ask(self, question: Callable[[], Awaitable[SessionSnapshot | None]]) -> SessionSnapshot | None:
        return await super()._ask(lambda: persist(question, self._chance))


def _outlives_node(session: "Session") -> bool:
    """A client may resume it, or its end must be reported to an application."""
    return session.extended or session.app is not None


class WriteThroughLog(SessionLog):
    """A session log that also reports changed sessions to the keeper."""

    def __init__(self, inner: SessionLog, keeper: LeasedSessionKeeper) -> None:
        self._inner = inner
        self._keeper = keeper
        self.lasting = inner.lasting

    def connected(self, session: "Session") -> None:
        self._inner.connected(session)
        self._keeper.began(session)

    def restored(self, session: "Session", former: str) -> None:
        self._inner.restored(session, former)
        self._keeper.changed(session)

    def changed(self, session: "Session", subscription: "Subscription | None" = None) -> None:
        self._inner.changed(session, subscription)
        self._keeper.changed(session)

    def ended(self, sid: str) -> None:
        self._inner.ended(sid)
        self._keeper.ended(sid)

    def subscribed(self, session: "Session", subscription: "Subscription") -> None:
        self._inner.subscribed(session, subscription)
        self._keeper.changed(session)

    def unsubscribed(self, session: "Session", identifier: str) -> None:
        self._inner.unsubscribed(session, identifier)
        self._keeper.changed(session)

    def joined(self, session: "Session", stream: str, member: Member, events: Sequence[PresenceEvent]) -> None:
        self._inner.joined(session, stream, member, events)
        self._keeper.changed(session)

    def left(self, session: "Session", stream: str, member: Member, events: Sequence[PresenceEvent]) -> None:
        self._inner.left(session, stream, member, events)
        self._keeper.changed(session)

    # --- events that do not change a snapshot ---

    def passed(self, sid: str, snapshot: SessionSnapshot) -> None:
        self._inner.passed(sid, snapshot)

    def disconnected(self, session: "Session", kept: bool, reason: str) -> None:
        self._inner.disconnected(session, kept, reason)

    def revoked(self, sid: str, reason: str) -> None:
        self._inner.revoked(sid, reason)

    async def disconnect_requested(self, request: RemoteDisconnect) -> None:
        await self._inner.disconnect_requested(request)

    def expired(self, events: Sequence[PresenceEvent]) -> None:
        self._inner.expired(events)

    def rewrite(self, sessions: Iterable["Session"]) -> None:
        self._inner.rewrite(sessions)

    async def finish(self) -> None:
        await self._inner.finish()

    def health(self) -> str:
        return self._inner.health()

    def gauges(self) -> dict[str, float]:
        return self._inner.gauges()

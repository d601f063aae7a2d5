"""The node composes the parts of the engine, opens sessions, runs periodic work, and shuts down in order."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence

from ropewalk.core.credentials import Credentials
from ropewalk.core.quotas import ConnectionQuotas
from ropewalk.core.stats import RefusalSummary, Summary
from ropewalk.engine.bounds import BoundedPublisher
from ropewalk.engine.broker import Broker, LocalPublisher
from ropewalk.engine.commands import CommandHandler
from ropewalk.engine.context import Access, EngineContext
from ropewalk.engine.conversation import Conversation
from ropewalk.engine.feed import FeedReader
from ropewalk.engine.history_pages import HistoryPages
from ropewalk.engine.joins import Joiner
from ropewalk.engine.session import Session
from ropewalk.engine.session_log import SessionLog
from ropewalk.engine.session_opening import SessionOpener
from ropewalk.engine.session_services import SessionServices, build_services
from ropewalk.engine.session_table import Sampler, SessionTable, Sids
from ropewalk.engine.subscription import Subscription
from ropewalk.engine.timeouts import Heartbeat, Timeouts
from ropewalk.engine.trace import short_sid, traced_application, traced_connection, traced_delivery, tracing
from ropewalk.engine.waiting_history import WaitingHistory
from ropewalk.model import closing as closings
from ropewalk.model.errors import RopewalkError, Unavailable
from ropewalk.model.messages import RemoteDisconnect
from ropewalk.model.report import SHUTTING_DOWN
from ropewalk.model.sessions import ConnectRequest, EndRequest, SessionTaken, SessionWanted
from ropewalk.ports import Backend, Connection, SessionStore
from ropewalk.protocol.codec import SessionCodec


class Disconnector:
    """Handles disconnect requests of the feed: remote disconnects, and sessions that another node takes over."""

    def __init__(self, table: SessionTable, store: SessionStore, services: SessionServices) -> None:
        self._table = table
        self._store = store
        self._keeper = services.keeper
        self._session_log = services.session_log
        self._disconnect_queue = services.disconnect_queue

    async def handle(self, request: EndRequest) -> int:
        """Return the number of sessions that ended."""
        match request:
            case SessionTaken():
                return self._keeper.end_taken(request)
            case SessionWanted():
                return await self._keeper.release(request.sid)
            case RemoteDisconnect():
                return await self.disconnect(request)

    async def disconnect(self, request: RemoteDisconnect) -> int:
        """End the live, departing and stored sessions of an identity. Opening sessions end once they are identified."""
        ids = request.identifier
        self._table.revocations.add(request)
        live = [session for session in self._table.live.values() if session.ids == ids]
        departing = [session for session in self._table.departing.values() if session.ids == ids]
        for session in live:
            session.end(closings.remote_closing(request))
        ended = sum(not self._keeper.stored(session) for session in live)  # stored sessions are counted below
        for session in departing:
            stored = self._keeper.stored(session)
            ended += session.revoke(closings.REMOTE.reason) and not stored
        own = {session.sid: session for session in (*live, *departing)}
        for sid, snapshot in await self._store.revoke(ids, request.reconnect):
            ended += 1
            if sid in own:
                self._keeper.on_revoked(own[sid], snapshot)
            else:
                self._session_log.revoked(sid, closings.REMOTE.reason)
                self._disconnect_queue.put(sid, snapshot)
        await self._session_log.disconnect_requested(request)
        return ended


logger = logging.getLogger("ropewalk.node")

SWEEP_SECONDS = 1.0
DRAIN_STEP = 0.02

LEAVE_SECONDS = 3.0
"""Shutdown timeouts: for the next session to be saved, and for pending publications."""


async def _nothing() -> None:
    pass


class Node:
    """One process's sessions over one backend."""

    def __init__(
        self,
        context: EngineContext,
        backend: Backend,
        access: Access = Access(),  # noqa: B008 - it is immutable
        session_log: SessionLog = SessionLog(),  # noqa: B008 - it has no state
        keeps_ephemeral: bool = True,
        stream_key: Callable[[str], bytes] = str.encode,
    ) -> None:
        """
        Args:
            keeps_ephemeral: False makes streams whose rules keep no history ephemeral.
            stream_key: returns the key of a stream, for subscriptions by prefix.
        """
        application = access.application
        if application is not None and tracing():
            application = traced_application(application)
        limits, stats, clock = context.limits, context.stats, context.clock
        self.backend = backend
        self.application = application
        self.limits, self.rules, self.stats, self.clock, self.tasks = limits, context.rules, stats, clock, context.tasks
        self.sessions = SessionTable()
        self.quotas = ConnectionQuotas(limits)
        self._sids = Sids()
        self._refusals = RefusalSummary(stats, clock())
        self._draining = False
        self._leaving = False
        # A store of this process answers at once, so without an application an opening rarely suspends.
        self._instant = backend.feed.exact and application is None
        self.sampler = Sampler(self.sessions.live, stats)
        self.broker = Broker(
            backend.streams, backend.feed, stats, clock, context.chance, None if keeps_ephemeral else context.rules
        )
        self._feed = feed = FeedReader(context, backend.feed, backend.streams, self.broker, stream_key)
        self.hub = feed.hub
        self._deliver = traced_delivery(feed.deliver) if tracing() else feed.deliver
        self.timeouts = Timeouts(limits, stats, self.tasks)
        self._heartbeat = Heartbeat(limits, clock, self.tasks, self.timeouts)
        self.waiting_history = WaitingHistory(limits.max_pending_history)
        self.joiner = Joiner(context, feed.hub, feed, backend.streams, self.waiting_history)
        services = build_services(context, backend, application, self.sessions, self.joiner, session_log)
        self.session_log, self._keeper, self.disconnect_queue = services.session_log, services.keeper, services.disconnect_queue
        self._disconnector = Disconnector(self.sessions, backend.sessions, services)
        self.local_publisher = LocalPublisher(self._deliver, self._disconnector.disconnect, stats, clock)
        self._conversation = None
        if application is not None:
            credentials = Credentials(access.sessions_key or secrets.token_bytes(32), access.forward)
            self._conversation = Conversation(application, credentials, self.broker, services)
        self._opener = SessionOpener(access.authenticators, self._conversation, self.sessions, self._heartbeat, services)
        pages = HistoryPages(backend.streams, stats, self.waiting_history)
        commands = CommandHandler(access.channels, self._conversation, pages, feed.prefixes, self.broker, services)
        # Bound methods of the parts, not wrappers around them: sessions call these for every command.
        self.handle = commands.handle
        self.spawn = self.tasks.spawn
        self.begin = self.tasks.start_soon if self._instant else self._spawn
        self.note_activity = self.timeouts.note_activity
        self.paused = self.timeouts.paused
        self.opened = self.sessions.opened
        self.depart = self._keeper.depart

    # --- start and stop -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self.backend.start()
        try:
            await self.backend.feed.start(self._deliver, self._disconnector.handle, self._missed)
            if self.application is not None:
                await self.application.start(BoundedPublisher(self.broker, self.limits))
                self.disconnect_queue.start()
        except BaseException:  # its connections would keep the process from ending
            await self.backend.feed.stop()
            await self.backend.stop()
            raise
        self._keeper.start()
        self.tasks.spawn(self._keep_time())

    def _missed(self, streams: Collection[str] | None = None) -> None:
        self._feed.missed(streams)
        self._keeper.on_store_interrupted()
        self.session_log.rewrite(self.sessions.live.values())

    def leave(self) -> None:
        """Report shutting down on the health page, so that load balancers stop sending clients. Everything keeps working."""
        self._leaving = True

    async def drain(self, spread: float, reconnect_rate: int = 0) -> None:
        """Disconnect all sessions with the request to reconnect, evenly over `spread` seconds; few of them faster.

        `reconnect_rate`: reconnects per second. Each client that supports it gets a delay; 0 sends no delays.
        """
        self._draining = self._leaving = True
        leaving = list(self.sessions.live.values())
        steps = max(1, int(spread / DRAIN_STEP))
        share = -(-len(leaving) // steps) or 1
        for start in range(0, len(leaving), share):
            for place, session in enumerate(leaving[start : start + share], start):
                if reconnect_rate:
                    session.send_away(1000 * place // reconnect_rate)
                else:
                    session.end(closings.SERVER_RESTART)
            if spread > 0:
                await asyncio.sleep(DRAIN_STEP)

    async def stop(self, last: Callable[[], Awaitable[None]] = _nothing) -> None:
        """`last` is called after all sessions have ended and publishing is closed, while the store is still connected."""
        self._draining = True
        for session in [*self.sessions.live.values(), *self.sessions.opening.values()]:
            session.end(closings.SERVER_RESTART)
        under_way = [session.opening for session in self.sessions.opening.values()]
        under_way += [session.leaving for session in self.sessions.departing.values()]
        await self._wait_for([task for task in under_way if task is not None])
        try:
            for sid, snapshot in await self.backend.sessions.take_abandoned():
                self.disconnect_queue.put(sid, snapshot)
        except Unavailable as error:  # another node takes them from a shared store
            logger.debug("ended sessions are left to others", extra={"reason": str(error)})
        await self.disconnect_queue.finish()
        await self.session_log.finish()
        await self.tasks.cancel()
        if self.application is not None:
            await self.application.stop()
        await self.broker.close(LEAVE_SECONDS)
        await last()
        await self.backend.feed.stop()
        await self.backend.stop()
        _log_refusals(self._refusals.rest(self.clock()))

    async def _wait_for(self, ending: Sequence[asyncio.Task[None]]) -> None:
        """Wait until they are done, or none has finished for `LEAVE_SECONDS`, because a shared store is down. The stored
        sessions can be resumed in that case too."""
        waiting = set(ending)
        seconds = LEAVE_SECONDS if self._keeper.shared else None
        while waiting:
            done, waiting = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                logger.warning("sessions are not saved: store timeout", extra={"count": len(waiting)})
                return

    def watch_turns(self) -> None:
        """Measure from now on how long the event loop is held."""
        self.tasks.spawn(self.tasks.watch_turns(self.stats.loop_turns))

    async def _keep_time(self) -> None:
        failures = 0
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self.upkeep()
            except RopewalkError as error:
                failures += 1
                level = logging.WARNING if failures == 1 else logging.DEBUG
                logger.log(level, "upkeep failed", extra={"reason": str(error)})
            else:
                if failures:
                    logger.info("upkeep works again", extra={"failures": failures})
                failures = 0

    async def upkeep(self) -> None:
        """Run periodic work. Called about once a second."""
        _log_refusals(self._refusals.due(self.clock()))
        self.quotas.sweep(self.clock())
        await self.sampler.sample(asyncio.get_running_loop().time())
        await self.backend.sweep()
        await self._feed.upkeep()
        for sid, snapshot in await self.backend.sessions.take_expired(self.disconnect_queue.free_slots()):
            self.disconnect_queue.put(sid, snapshot)
        while events := await self.backend.presence.expire():
            self.session_log.expired(events)
            await asyncio.sleep(0)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def open(self, request: ConnectRequest, connection: Connection, codec: SessionCodec) -> Session:
        sid = self._sids.new()
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("connection", extra={"session": short_sid(sid), "path": request.path, "remote": request.remote})
        if tracing():
            connection = traced_connection(connection, sid, codec.readable)
        beat = self._heartbeat.beat(request.options)
        app = None if self._conversation is None else self._conversation.build_app_side(request)
        session = Session(self, sid, connection, codec, request, beat, app)
        self.stats.connections_accepted += 1
        if self._draining:
            session.end(closings.SERVER_RESTART)
        elif session.enter(request.remote):
            self.sessions.begin(session)
            opening = self._opener.open(session, request)
            session.opening = self.tasks.start(opening) if self._instant else self.tasks.spawn(opening)
        return session

    # --- for its sessions ---------------------------------------------------------------------------------------------

    def _spawn(self, work: Callable[[], Coroutine[object, None, None]]) -> None:
        self.tasks.spawn(work())

    def revocation(self, session: Session, ids: str) -> RemoteDisconnect | None:
        return self.sessions.revocations.find(session.sid, ids)

    def accepted(self, session: Session) -> None:
        self.sessions.live[session.sid] = session
        self._heartbeat.add(session)

    def dropped(self, session: Session, subscription: Subscription) -> None:
        self.joiner.drop(session.link, subscription)

    def dropped_all(self, session: Session) -> None:
        self.joiner.drop_all(session.link, session.subscriptions.values())

    def revoked(self, session: Session, reason: str) -> None:
        self.session_log.revoked(session.sid, reason)

    def disconnected(self, session: Session) -> None:
        self._heartbeat.remove(session)
        self.timeouts.forget(session)
        self.quotas.leave(session.address, session.user)
        self.sessions.live.pop(session.sid, None)

    def departing(self, session: Session, reason: str) -> bool:
        self.session_log.disconnected(session, session.keeping, reason)
        if self._keeper.needs_departure(session):
            self.sessions.departing[session.sid] = session
            return True
        self.session_log.ended(session.sid)
        return False

    def departed(self, session: Session) -> None:
        self.sessions.departing.pop(session.sid, None)

    def health(self) -> list[str]:
        """The current problems, as sentences; empty if there are none."""
        journal = self.session_log.health()
        application = self.application.health() if self.application else ""
        leaving = SHUTTING_DOWN if self._leaving else ""
        problems = (self.backend.health(), self.backend.feed.health(), journal, application, leaving)
        return [problem for problem in problems if problem]


def _log_refusals(refused: Summary | None) -> None:
    """Log one line for many refusals. Each refusal is also logged at debug level where it happens."""
    if refused is not None:
        level = logging.WARNING if refused.at_capacity else logging.INFO
        logger.log(level, "refused in the last %d s", max(1, round(refused.seconds)), extra=refused.counts)

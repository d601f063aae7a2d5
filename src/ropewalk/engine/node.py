"""The node composes the parts of the engine, opens sessions, runs periodic work, and shuts down in order."""

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Collection, Container, Sequence

from ropewalk.core.backoff import Chance
from ropewalk.core.credentials import Credentials
from ropewalk.core.refusal_summary import RefusalSummary, Summary
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.engine.bounds import BoundedPublisher
from ropewalk.engine.broker import EVERYTHING, Broker
from ropewalk.engine.commands import CommandHandler
from ropewalk.engine.conversation import Conversation
from ropewalk.engine.disconnect_queue import ApplicationDisconnectQueue, DisconnectQueue
from ropewalk.engine.feed import FeedReader
from ropewalk.engine.heartbeat import Heartbeat
from ropewalk.engine.history_pages import HistoryPages
from ropewalk.engine.hub import Hub
from ropewalk.engine.joins import Joiner
from ropewalk.engine.local_publisher import LocalPublisher
from ropewalk.engine.persistent_presence import PersistentPresence
from ropewalk.engine.prefixes import Prefixes
from ropewalk.engine.presence import PresenceCommands
from ropewalk.engine.sampler import Sampler
from ropewalk.engine.session import Session
from ropewalk.engine.session_host import NodeHost
from ropewalk.engine.session_keeping import SessionKeeper
from ropewalk.engine.session_leases import LeasedSessionKeeper, WriteThroughLog
from ropewalk.engine.session_log import SessionLog
from ropewalk.engine.session_opening import SessionOpener
from ropewalk.engine.session_table import SessionTable
from ropewalk.engine.sids import Sids
from ropewalk.engine.tasks import Tasks
from ropewalk.engine.timeouts import Timeouts
from ropewalk.engine.trace import tag_of, traced_application, traced_connection, traced_delivery, tracing
from ropewalk.engine.waiting_history import WaitingHistory
from ropewalk.model import closing as closings
from ropewalk.model.errors import RopewalkError, Unavailable
from ropewalk.model.limits import Limits
from ropewalk.model.messages import RemoteDisconnect
from ropewalk.model.report import SHUTTING_DOWN
from ropewalk.model.sessions import ConnectRequest, SessionTaken, SessionWanted
from ropewalk.ports import Application, Authenticator, Backend, Channels, Clock, Connection, PresenceStore
from ropewalk.protocol.codec import SessionCodec

logger = logging.getLogger("ropewalk.node")

SWEEP_SECONDS = 1.0
DRAIN_STEP = 0.02

LEAVE_SECONDS = 3.0
"""For how long a node that stops waits for the next session to be saved, and for pending publications."""


async def _nothing() -> None:
    pass


class Node:
    """One process's sessions over one backend."""

    def __init__(
        self,
        backend: Backend,
        authenticators: Sequence[Authenticator],
        channels: Sequence[Channels],
        rules: Rulebook,
        limits: Limits,
        stats: Stats,
        clock: Clock,
        session_log: SessionLog = SessionLog(),  # noqa: B008 - it says nothing and holds nothing
        application: Application | None = None,
        forward: Callable[[ConnectRequest], dict[str, str]] = lambda request: {},
        sessions_key: bytes = b"",
        chance: Chance = random.random,
        forgets: bool = False,
        key_of: Callable[[str], bytes] = str.encode,
    ) -> None:
        """`forward` chooses the headers of a request that the application may see. `sessions_key` is for fingerprints of
        credentials. One that stays the same over a restart makes sessions that an application admitted resume afterwards
        without asking it. `forgets`: streams whose rules keep no history are ephemeral, because nothing else keeps what is
        registered. `key_of`: the keys of streams, for subscriptions by prefix."""
        if application is not None and tracing():
            application = traced_application(application)
        self.backend = backend
        self.application = application
        self.stats = stats
        self.sessions = SessionTable()
        self.tasks = Tasks()
        self._sids = Sids()
        self.timeouts = Timeouts(limits, stats, self.tasks)
        self.hub = Hub(stats, clock)
        heard = self.hub.heard if backend.feed.exact else EVERYTHING
        self.broker = Broker(backend.streams, backend.feed, stats, clock, chance, rules if forgets else None, heard)
        self.sampler = Sampler(self.sessions.live, stats)
        self._limits = limits
        self._clock = clock
        self._refusals = RefusalSummary(stats, clock())
        self._draining = False
        self._leaving = False
        # A store of this process answers at once, and nobody else is asked: there is mostly nothing to wait for.
        self._at_once = backend.feed.exact and application is None
        prefixes = Prefixes(backend.feed, self.hub, key_of, self._hear)
        self._feed = FeedReader(
            backend.feed, self.hub, backend.streams, self.tasks, stats, clock, chance, prefixes, self.broker.is_ephemeral
        )
        deliver = self._feed.deliver
        self._deliver = traced_delivery(deliver) if tracing() else deliver
        self.local_publisher = LocalPublisher(self._deliver, self._end_all, stats, clock)
        self._heartbeat = Heartbeat(limits, clock, self.tasks, self.timeouts)
        self.waiting_history = WaitingHistory(limits.max_pending_history)
        self.joiner = Joiner(self.hub, self._feed, backend.streams, stats, chance, self.waiting_history, limits.archive_replay)
        self.disconnect_queue = (
            DisconnectQueue(session_log)
            if application is None
            else ApplicationDisconnectQueue(application, limits, stats, session_log, chance)
        )
        live, departing = self.sessions.live, self.sessions.departing
        store: PresenceStore = backend.presence
        settle: Callable[[Session, str], None] | None = None
        if backend.leases is None:
            keeper = SessionKeeper(backend, store, limits, stats, self.disconnect_queue, live, departing)
        else:
            store = persistent = PersistentPresence(store, self.tasks, chance)
            settle = persistent.settle
            keeper = leased = LeasedSessionKeeper(
                backend,
                backend.leases,
                persistent,
                limits,
                stats,
                self.disconnect_queue,
                live,
                departing,
                self.tasks,
                clock,
                chance,
            )
            session_log = WriteThroughLog(session_log, leased)
        self.session_log = session_log
        self._keeper = keeper
        presence = PresenceCommands(store, session_log, limits, stats, settle)
        self._conversation = (
            None
            if application is None
            else Conversation(
                application,
                Credentials(sessions_key or secrets.token_bytes(32), forward),
                self.disconnect_queue,
                self.joiner,
                presence,
                self.broker,
                keeper,
                session_log,
                limits,
                stats,
            )
        )
        self._opener = SessionOpener(
            authenticators,
            self._conversation,
            keeper,
            self.sessions,
            self.joiner,
            presence,
            session_log,
            self._heartbeat,
            self.tasks,
            limits,
            stats,
            clock,
        )
        commands = CommandHandler(
            channels,
            self._conversation,
            self.joiner,
            presence,
            HistoryPages(backend.streams, stats, self.waiting_history),
            prefixes,
            self.broker,
            session_log,
            limits,
            stats,
        )
        self._host = NodeHost(
            self.sessions,
            commands,
            self.joiner,
            keeper,
            session_log,
            self._heartbeat,
            self.timeouts,
            self.tasks,
            rules,
            limits,
            stats,
            clock,
            self._at_once,
        )

    # --- start and stop -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self.backend.start()
        try:
            await self.backend.feed.start(self._deliver, self._obey, self._missed)
            if self.application is not None:
                await self.application.start(BoundedPublisher(self.broker, self._limits))
                self.disconnect_queue.start()
        except BaseException:  # its connections would keep the process from ending
            await self.backend.feed.stop()
            await self.backend.stop()
            raise
        self._keeper.start()
        self.tasks.spawn(self._keep_time())

    def _hear(self, streams: Container[str]) -> None:
        if self.backend.feed.exact:
            self.broker.heard = streams

    def _missed(self, streams: Collection[str] | None = None) -> None:
        self._feed.missed(streams)
        self._keeper.doubt()
        self.session_log.tell_again(self.sessions.live.values())

    def leave(self) -> None:
        """Say on the health page that the end is near, so that load balancers look elsewhere; everything works on."""
        self._leaving = True

    async def drain(self, spread: float, reconnect_rate: int = 0) -> None:
        """Tell every session to leave and come back, evenly over `spread` seconds.

        `reconnect_rate`: how many of them a second are told to come back, as far as they understand it; 0 tells none.
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
        """`last` is called when all sessions have left, nothing can be published any more and the store can still be asked."""
        self._draining = True
        for session in [*self.sessions.live.values(), *self.sessions.opening.values()]:
            session.end(closings.SERVER_RESTART)
        under_way = [session.opening for session in self.sessions.opening.values()]
        under_way += [session.leaving for session in self.sessions.departing.values()]
        await self._wait_for([task for task in under_way if task is not None])
        try:
            for sid, snapshot in await self.backend.sessions.abandoned():
                self.disconnect_queue.put(sid, snapshot)
        except Unavailable as error:  # a store that nodes share gives them to another one
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
        _tell(self._refusals.rest(self._clock()))

    async def _wait_for(self, ending: Sequence[asyncio.Task[None]]) -> None:
        """Until they are done, or none of them was for a while: the store is away. What it has of these sessions is left behind
        by this node then, and can be resumed as well."""
        waiting = set(ending)
        seconds = LEAVE_SECONDS if self._keeper.shared else None
        while waiting:
            done, waiting = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                logger.warning("sessions are not saved: the store does not answer", extra={"count": len(waiting)})
                return

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
        """What is due: called about once a second."""
        _tell(self._refusals.due(self._clock()))
        await self.sampler.sample(asyncio.get_running_loop().time())
        await self.backend.sweep()
        await self._feed.upkeep()
        for sid, snapshot in await self.backend.sessions.expired(self.disconnect_queue.free_slots()):
            self.disconnect_queue.put(sid, snapshot)
        self.session_log.expired(await self.backend.presence.expire())

    # --- sessions -----------------------------------------------------------------------------------------------------

    def open(self, request: ConnectRequest, connection: Connection, codec: SessionCodec) -> Session:
        sid = self._sids.new()
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("connection", extra={"session": tag_of(sid), "path": request.path, "remote": request.remote})
        if tracing():
            connection = traced_connection(connection, sid, codec.readable)
        beat = self._heartbeat.beat(request.options)
        app = None if self._conversation is None else self._conversation.side_of(request)
        session = Session(self._host, sid, connection, codec, request, beat, app)
        self.stats.connections_accepted += 1
        if self._draining:
            session.end(closings.SERVER_RESTART)
        else:
            self.sessions.begin(session)
            opening = self._opener.open(session, request)
            session.opening = self.tasks.start(opening) if self._at_once else self.tasks.spawn(opening)
        return session

    async def _obey(self, order: RemoteDisconnect | SessionTaken | SessionWanted) -> int:
        match order:
            case SessionTaken():
                return self._keeper.obey(order)
            case SessionWanted():
                return await self._keeper.release(order.sid)
            case RemoteDisconnect():
                return await self._end_all(order)

    async def _end_all(self, order: RemoteDisconnect) -> int:
        """Ends live sessions, those on their way out, and those that are away; whoever is on its way in is ended on arrival."""
        ids = order.identifier
        self.sessions.revocations.add(order)
        self.hub.flush()  # what was published before the order comes before the goodbye
        live = [session for session in self.sessions.live.values() if session.ids == ids]
        leaving = [session for session in self.sessions.departing.values() if session.ids == ids]
        for session in live:
            session.end(closings.by_order(order))
        ended = sum(not self._keeper.stored(session) for session in live)  # those that are stored are counted there
        ended += sum(session.revoke(closings.REMOTE.reason) for session in leaving)
        mine = {session.sid: session for session in (*live, *leaving)}
        for sid, snapshot in await self.backend.sessions.revoke(ids, order.reconnect):
            ended += 1
            if sid in mine:
                self._keeper.over(mine[sid], snapshot)
            else:
                self.session_log.revoked(sid, closings.REMOTE.reason)
                self.disconnect_queue.put(sid, snapshot)
        await self.session_log.ordered(order)
        return ended

    def health(self) -> list[str]:
        """What is down, as sentences; empty when all is well."""
        journal = self.session_log.health()
        application = self.application.health() if self.application else ""
        leaving = SHUTTING_DOWN if self._leaving else ""
        problems = (self.backend.health(), self.backend.feed.health(), journal, application, leaving)
        return [problem for problem in problems if problem]


def _tell(refused: Summary | None) -> None:
    """One line for many refusals; each single one is told at debug level where it happens."""
    if refused is not None:
        level = logging.WARNING if refused.at_capacity else logging.INFO
        logger.log(level, "refused in the last %d s", max(1, round(refused.seconds)), extra=refused.counts)

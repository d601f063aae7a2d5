"""The node as its sessions see it: what a session asks and tells goes to the parts of the engine that it concerns."""

from collections.abc import Callable, Coroutine

from ropewalk.core.quotas import ConnectionQuotas
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.engine.commands import CommandHandler
from ropewalk.engine.heartbeat import Heartbeat
from ropewalk.engine.joins import Joiner
from ropewalk.engine.session import Session
from ropewalk.engine.session_keeping import SessionKeeper
from ropewalk.engine.session_log import SessionLog
from ropewalk.engine.session_table import SessionTable
from ropewalk.engine.subscription import Subscription
from ropewalk.engine.tasks import Tasks
from ropewalk.engine.timeouts import Timeouts
from ropewalk.model.limits import Limits
from ropewalk.model.messages import RemoteDisconnect
from ropewalk.ports import Clock


class NodeHost:
    """Implements `session.SessionHost`."""

    def __init__(
        self,
        table: SessionTable,
        commands: CommandHandler,
        joiner: Joiner,
        keeper: SessionKeeper,
        session_log: SessionLog,
        heartbeat: Heartbeat,
        timeouts: Timeouts,
        quotas: ConnectionQuotas,
        tasks: Tasks,
        rules: Rulebook,
        limits: Limits,
        stats: Stats,
        clock: Clock,
        at_once: bool,
    ) -> None:
        """`at_once`: commands are handled up to their first wait when they come, and not in tasks of their own."""
        self._table = table
        self._joiner = joiner
        self._keeper = keeper
        self._session_log = session_log
        self._heartbeat = heartbeat
        self._timeouts = timeouts
        self.quotas = quotas
        self.limits = limits
        self.rules = rules
        self.stats = stats
        self.clock = clock
        # Themselves, not methods around them: they are called for every command.
        self.handle = commands.handle
        self.spawn = tasks.spawn
        self.begin = tasks.start_soon if at_once else self._spawn
        self.heard = timeouts.heard
        self.paused = timeouts.paused
        self.opened = table.opened
        self.depart = keeper.depart

    def _spawn(self, work: Callable[[], Coroutine[object, None, None]]) -> None:
        self.spawn(work())

    def revocation(self, session: Session, ids: str) -> RemoteDisconnect | None:
        return self._table.revocations.order_for(session.sid, ids)

    def accepted(self, session: Session) -> None:
        self._table.live[session.sid] = session
        self._heartbeat.add(session)

    def dropped(self, session: Session, subscription: Subscription) -> None:
        self._joiner.drop(session.link, subscription)

    def revoked(self, session: Session, reason: str) -> None:
        self._session_log.revoked(session.sid, reason)

    def disconnected(self, session: Session) -> None:
        self._heartbeat.remove(session)
        self._timeouts.forget(session)
        self.quotas.leave(session.address, session.user)
        self._table.live.pop(session.sid, None)

    def departing(self, session: Session, reason: str) -> bool:
        self._session_log.disconnected(session, session.keeping, reason)
        if self._keeper.concerned(session):
            self._table.departing[session.sid] = session
            return True
        self._session_log.ended(session.sid)
        return False

    def departed(self, session: Session) -> None:
        self._table.departing.pop(session.sid, None)

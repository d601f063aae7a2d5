"""What commands, openings and the application's answers need to handle a session: declared and assembled once."""

from msgspec import Struct

from ropewalk.engine.context import EngineContext
from ropewalk.engine.disconnect_queue import ApplicationDisconnectQueue, DisconnectQueue
from ropewalk.engine.joins import Joiner
from ropewalk.engine.persistent_presence import PersistentPresence
from ropewalk.engine.presence import PresenceCommands
from ropewalk.engine.session_keeping import SessionKeeper
from ropewalk.engine.session_leases import LeasedSessionKeeper, WriteThroughLog
from ropewalk.engine.session_log import SessionLog
from ropewalk.engine.session_table import SessionTable
from ropewalk.ports import Application, Backend


class SessionServices(Struct, frozen=True):
    """Args:
    keeper: keeps sessions whose connection was lost, for a resume.
    session_log: writes changes of sessions to the journal and, for a shared store, to the keeper.
    disconnect_queue: reports ended sessions to the application.
    """

    context: EngineContext
    joiner: Joiner
    presence: PresenceCommands
    keeper: SessionKeeper
    session_log: SessionLog
    disconnect_queue: DisconnectQueue


def build_services(
    context: EngineContext,
    backend: Backend,
    application: Application | None,
    table: SessionTable,
    joiner: Joiner,
    session_log: SessionLog,
) -> SessionServices:
    limits, stats, chance = context.limits, context.stats, context.chance
    disconnects = (
        DisconnectQueue(session_log)
        if application is None
        else ApplicationDisconnectQueue(application, limits, stats, session_log, chance)
    )
    if backend.leases is None:
        keeper = SessionKeeper(context, backend, backend.presence, disconnects, table)
        presence = PresenceCommands(backend.presence, session_log, limits, stats)
        return SessionServices(context, joiner, presence, keeper, session_log, disconnects)
    persistent = PersistentPresence(backend.presence, context.tasks, chance)
    leased = LeasedSessionKeeper(context, backend, backend.leases, persistent, disconnects, table)
    session_log = WriteThroughLog(session_log, leased)
    presence = PresenceCommands(persistent, session_log, limits, stats, persistent.reconcile)
    return SessionServices(context, joiner, presence, leased, session_log, disconnects)

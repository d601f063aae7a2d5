"""The dependencies of a session: one object, made by the node and shared by all sessions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ropewalk.core.credentials import Credentials
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.engine.broker import Broker
from ropewalk.engine.disconnect_queue import DisconnectQueue
from ropewalk.engine.heartbeat import Heartbeat
from ropewalk.engine.hub import Hub
from ropewalk.engine.joins import Joiner
from ropewalk.engine.revocations import Revocations
from ropewalk.engine.session import Session
from ropewalk.engine.session_keeping import SessionKeeper
from ropewalk.engine.session_log import SessionLog
from ropewalk.engine.tasks import Tasks
from ropewalk.engine.timeouts import Timeouts
from ropewalk.model.limits import Limits
from ropewalk.model.sessions import ConnectRequest
from ropewalk.ports import Application, Authenticator, Backend, Channels, Clock, PresenceStore

Forward = Callable[[ConnectRequest], dict[str, str]]
"""The headers of a request that the application may see."""


@dataclass(slots=True, frozen=True)
class Services:
    backend: Backend
    presence: PresenceStore
    keeper: SessionKeeper
    broker: Broker
    hub: Hub
    joiner: Joiner
    authenticators: Sequence[Authenticator]
    channels: Sequence[Channels]
    application: Application | None
    disconnect_queue: DisconnectQueue
    forward: "Forward"
    credentials: Credentials
    rules: Rulebook
    limits: Limits
    stats: Stats
    clock: Clock
    tasks: Tasks
    session_log: SessionLog
    heartbeat: "Heartbeat"
    timeouts: "Timeouts"
    sessions: dict[str, "Session"]  # live
    departing: dict[str, "Session"]  # being saved; a quick return waits for it
    opening: dict[str, "Session"] = field(default_factory=dict)  # not known yet
    revocations: Revocations = field(default_factory=Revocations)

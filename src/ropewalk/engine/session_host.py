"""The node as its sessions see it: what a session asks and tells goes to the parts of the engine that it concerns."""

from ropewalk.engine.commands import handle
from ropewalk.engine.services import Services
from ropewalk.engine.session import Session
from ropewalk.engine.subscription import Subscription
from ropewalk.model.commands import Command
from ropewalk.model.messages import RemoteDisconnect


class NodeHost:
    """Implements `session.SessionHost`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.limits = services.limits
        self.rules = services.rules
        self.stats = services.stats
        self.clock = services.clock
        # Themselves, not methods around them: they are called for every command.
        self.spawn = services.tasks.spawn
        self.heard = services.timeouts.heard
        self.paused = services.timeouts.paused

    async def handle(self, session: Session, command: Command) -> bool:
        return await handle(session, self._services, command)

    def revocation(self, session: Session, ids: str) -> RemoteDisconnect | None:
        return self._services.revocations.order_for(session.sid, ids)

    def accepted(self, session: Session) -> None:
        self._services.sessions[session.sid] = session
        self._services.heartbeat.add(session)

    def opened(self, session: Session) -> None:
        self._services.opening.pop(session.sid, None)
        self._services.revocations.opened(session.sid)

    def dropped(self, session: Session, subscription: Subscription) -> None:
        for group in subscription.groups:
            self._services.hub.leave(group, session.link)
        subscription.groups = ()
        self._services.joiner.release(subscription)

    def revoked(self, session: Session, reason: str) -> None:
        self._services.session_log.revoked(session.sid, reason)

    def disconnected(self, session: Session) -> None:
        self._services.heartbeat.remove(session)
        self._services.timeouts.forget(session)
        self._services.sessions.pop(session.sid, None)

    def departing(self, session: Session, reason: str) -> bool:
        services = self._services
        services.session_log.disconnected(session, session.keeping, reason)
        if services.keeper.concerned(session):
            services.departing[session.sid] = session
            return True
        services.session_log.ended(session.sid)
        return False

    async def depart(self, session: Session) -> None:
        await self._services.keeper.depart(session)

    def departed(self, session: Session) -> None:
        self._services.departing.pop(session.sid, None)

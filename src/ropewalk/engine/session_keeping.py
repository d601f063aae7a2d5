"""Keeps sessions after their connection is lost, and finds them when their clients reconnect.

A store of this process gets a session when its connection is lost. For stores that several nodes share see
`engine/session_leases.py`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ropewalk.engine.context import EngineContext
from ropewalk.engine.disconnect_queue import DisconnectQueue
from ropewalk.engine.session import Session
from ropewalk.engine.session_table import SessionTable
from ropewalk.model import closing as closings
from ropewalk.model.errors import LimitReached, Unavailable
from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import SessionSnapshot, SessionTaken
from ropewalk.ports import Backend, PresenceStore

logger = logging.getLogger("ropewalk.session")

DEPARTURE_SECONDS = 3.0
"""Timeout of a reconnecting client's wait for the departure of its former connection."""


class SessionKeeper:
    """For a store of this process. `shared`: whether other nodes use the store too."""

    shared = False

    def __init__(
        self,
        context: EngineContext,
        backend: Backend,
        presence: PresenceStore,
        disconnect_queue: DisconnectQueue,
        table: SessionTable,
    ) -> None:
        self._backend = backend
        self._presence = presence
        self._limits = context.limits
        self._stats = context.stats
        self._disconnect_queue = disconnect_queue
        self._sessions = table.live
        self._departing = table.departing

    def start(self) -> None: ...

    def on_store_interrupted(self) -> None:
        """The store was unreachable, and may have restarted empty."""

    def end_taken(self, notice: SessionTaken) -> int:
        """Another node has taken a session of this node. Returns the number of sessions ended here."""
        return 0

    def stored(self, session: "Session") -> bool:
        """Whether the store has the session while it is live."""
        return False

    async def wait_stored(self, session: "Session") -> None:
        """Wait until a store on the same host has the session. Called before the client receives its sid."""

    def needs_departure(self, session: "Session") -> bool:
        """Whether its departure needs more than a session log entry."""
        return bool(session.keeping or session.members or session.app is not None)

    async def depart(self, session: "Session") -> None:
        """The connection is lost: keep the session, or report its end to the application."""
        if not await self._save(session):
            self._disconnect_queue.put(session.sid, session.snapshot())
        if session.members:
            await self._presence.detach(session.sid, self._limits.presence_ttl)

    async def _save(self, session: "Session") -> bool:
        """Returns False if it cannot be resumed."""
        if not session.keeping:
            return False
        sessions = self._backend.sessions
        try:
            await sessions.save(session.sid, session.snapshot(), self._limits.sessions_ttl)
        except LimitReached as error:
            self._stats.refusals[Refusal.SESSION_SIZE] += 1
            logger.debug("a session is not kept", extra={"session": session.tag, "reason": str(error)})
            return False
        except Unavailable as error:
            logger.warning("a session cannot be kept", extra={"session": session.tag, "reason": str(error)})
            return False
        if not session.keeping:  # revoked while it was being saved
            await sessions.take(session.sid)
        return session.keeping

    async def find(self, sid: str) -> SessionSnapshot | None:
        """Return a session that could be restored, and leave it in place: the sid may not be the client's own."""
        if (alive := self._sessions.get(sid)) is not None:
            return alive.snapshot() if alive.extended else None
        await self._departed(sid)
        return await self._ask(lambda: self._backend.sessions.peek(sid))

    async def take(self, sid: str, successor: str) -> SessionSnapshot | None:
        """Take a session out of the store. Of several concurrent calls one gets it."""
        await self.release(sid)
        return await self._ask(lambda: self._backend.sessions.take(sid, successor))

    async def release(self, sid: str) -> int:
        """End the session if it is live here, so that its reconnected client can resume it. Returns the number ended."""
        alive = self._sessions.get(sid)
        if alive is not None:  # the old connection is dead, but its loss was not noticed yet
            alive.end(closings.TAKEN_OVER)
        await self._departed(sid)
        return int(alive is not None)

    def on_revoked(self, session: "Session", snapshot: SessionSnapshot) -> None:
        """The store has revoked a session that is live or departing here. `snapshot`: its state in the store."""
        self._disconnect_queue.put(session.sid, snapshot)

    async def put_back(self, former: str, successor: str, snapshot: SessionSnapshot, revoked: bool) -> None:
        """Undo `take`. `revoked`: end the session, so that it cannot be taken again."""
        try:
            if not revoked:
                return await self._backend.sessions.save(former, snapshot, self._limits.sessions_ttl)
        except (LimitReached, Unavailable) as error:
            logger.warning("a session cannot be kept", extra={"reason": str(error)})
        self._disconnect_queue.put(former, snapshot)

    async def _departed(self, sid: str) -> None:
        """Wait until a departing session is saved. The timeout is short because the store may be down."""
        leaving = self._departing.get(sid)
        if leaving is not None and leaving.leaving is not None:
            await asyncio.wait([leaving.leaving], timeout=DEPARTURE_SECONDS)

    async def _ask(self, question: Callable[[], Awaitable[SessionSnapshot | None]]) -> SessionSnapshot | None:
        try:
            return await question()
        except Unavailable as error:
            logger.warning("sessions cannot be restored", extra={"reason": str(error)})
            return None

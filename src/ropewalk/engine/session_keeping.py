"""Keeps sessions beyond their connection, and finds them again for clients that come back.

A store of this process gets a session when its connection is gone. For stores that several nodes share see
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
"""For how long a client that comes back waits until its former connection has left."""


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

    def doubt(self) -> None:
        """The store was out of reach, and may have begun anew."""

    def obey(self, order: SessionTaken) -> int:
        """The store has given a session of this node away. Returns how many were ended here."""
        return 0

    def stored(self, session: "Session") -> bool:
        """The store knows of it while it lives."""
        return False

    async def known(self, session: "Session") -> None:
        """Wait until the store knows of a session before its client hears its sid, where that takes no time."""

    def concerned(self, session: "Session") -> bool:
        """Its departure takes more than a line in the log."""
        return bool(session.keeping or session.members or session.app is not None)

    async def depart(self, session: "Session") -> None:
        """Its connection is gone: keep it, or tell the application."""
        if not await self._save(session):
            self._disconnect_queue.put(session.sid, session.snapshot())
        if session.members:
            await self._presence.detach(session.sid, self._limits.presence_ttl)

    async def _save(self, session: "Session") -> bool:
        """False if it is gone for good."""
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
        """What could be restored. Nothing changes: whoever shows a sid may not be who it belongs to."""
        if (alive := self._sessions.get(sid)) is not None:
            return alive.snapshot() if alive.extended else None
        await self._departed(sid)
        return await self._ask(lambda: self._backend.sessions.peek(sid))

    async def take(self, sid: str, successor: str) -> SessionSnapshot | None:
        """Of several who take one session one gets it."""
        await self.release(sid)
        return await self._ask(lambda: self._backend.sessions.take(sid, successor))

    async def release(self, sid: str) -> int:
        """If it is here, have it kept: its client has come back. Returns how many were ended."""
        alive = self._sessions.get(sid)
        if alive is not None:  # its connection only looks alive
            alive.end(closings.TAKEN_OVER)
        await self._departed(sid)
        return int(alive is not None)

    def over(self, session: "Session", snapshot: SessionSnapshot) -> None:
        """The store has given it out as revoked while it was leaving from here, as `snapshot` says."""
        self._disconnect_queue.put(session.sid, snapshot)

    async def put_back(self, former: str, successor: str, snapshot: SessionSnapshot, revoked: bool) -> None:
        """What was taken is not used. `revoked`: nobody may take it again."""
        try:
            if not revoked:
                return await self._backend.sessions.save(former, snapshot, self._limits.sessions_ttl)
        except (LimitReached, Unavailable) as error:
            logger.warning("a session cannot be kept", extra={"reason": str(error)})
        self._disconnect_queue.put(former, snapshot)

    async def _departed(self, sid: str) -> None:
        """Where a store that is down keeps the session from being saved, its client is not kept waiting for long."""
        leaving = self._departing.get(sid)
        if leaving is not None and leaving.leaving is not None:
            await asyncio.wait([leaving.leaving], timeout=DEPARTURE_SECONDS)

    async def _ask(self, question: Callable[[], Awaitable[SessionSnapshot | None]]) -> SessionSnapshot | None:
        try:
            return await question()
        except Unavailable as error:
            logger.warning("sessions cannot be restored", extra={"reason": str(error)})
            return None

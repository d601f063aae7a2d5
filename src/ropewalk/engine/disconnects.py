"""Handles disconnect requests of the feed: remote disconnects, and sessions that another node takes over."""

from ropewalk.engine.hub import Hub
from ropewalk.engine.session_services import SessionServices
from ropewalk.engine.session_table import SessionTable
from ropewalk.model import closing as closings
from ropewalk.model.messages import RemoteDisconnect
from ropewalk.model.sessions import EndRequest, SessionTaken, SessionWanted
from ropewalk.ports import SessionStore


class Disconnector:
    def __init__(self, hub: Hub, table: SessionTable, store: SessionStore, services: SessionServices) -> None:
        self._hub = hub
        self._table = table
        self._store = store
        self._keeper = services.keeper
        self._session_log = services.session_log
        self._disconnect_queue = services.disconnect_queue

    async def handle(self, request: EndRequest) -> int:
        """Return the number of sessions that ended."""
        match request:
            case SessionTaken():
                return self._keeper.obey(request)
            case SessionWanted():
                return await self._keeper.release(request.sid)
            case RemoteDisconnect():
                return await self.disconnect(request)

    async def disconnect(self, request: RemoteDisconnect) -> int:
        """End the live, departing and stored sessions of an identity. Opening sessions end once they are identified."""
        ids = request.identifier
        self._table.revocations.add(request)
        self._hub.flush()  # messages that were published before the request are sent before the disconnect frame
        live = [session for session in self._table.live.values() if session.ids == ids]
        departing = [session for session in self._table.departing.values() if session.ids == ids]
        for session in live:
            session.end(closings.remote_closing(request))
        ended = sum(not self._keeper.stored(session) for session in live)  # stored sessions are counted below
        ended += sum(session.revoke(closings.REMOTE.reason) for session in departing)
        own = {session.sid: session for session in (*live, *departing)}
        for sid, snapshot in await self._store.revoke(ids, request.reconnect):
            ended += 1
            if sid in own:
                self._keeper.over(own[sid], snapshot)
            else:
                self._session_log.revoked(sid, closings.REMOTE.reason)
                self._disconnect_queue.put(sid, snapshot)
        await self._session_log.ordered(request)
        return ended

"""Opens a session: restored from its sid, accepted by an authenticator, or refused. The welcome is always sent first.

A sid is random, made by the server, valid for one restore, and never outlives the token it was issued under. Other
credentials sent with it must match. The sid is used up only after that check.
"""

import asyncio
import logging
from collections.abc import Sequence

from ropewalk.engine.conversation import Conversation
from ropewalk.engine.session import Session
from ropewalk.engine.session_services import SessionServices
from ropewalk.engine.session_table import SessionTable
from ropewalk.engine.subscription import Subscription
from ropewalk.engine.timeouts import Heartbeat
from ropewalk.model import closing as closings
from ropewalk.model.errors import ServerError
from ropewalk.model.sessions import Accepted, ConnectRequest, Refused, SessionSnapshot
from ropewalk.ports import Authenticator

logger = logging.getLogger("ropewalk.session")

MAX_FORMER_SIDS = 8  # former sids a session remembers

MIN_RESUME_CHECK_SECONDS = 0.1
"""Minimum delay before a resume timeout is checked again."""


class SessionOpener:
    """`authenticators` are tried in order, then the application, if there is one."""

    def __init__(
        self,
        authenticators: Sequence[Authenticator],
        conversation: Conversation | None,
        table: SessionTable,
        heartbeat: Heartbeat,
        services: SessionServices,
    ) -> None:
        self._authenticators = authenticators
        self._conversation = conversation
        self._table = table
        self._heartbeat = heartbeat
        self._keeper = services.keeper
        self._joiner = services.joiner
        self._presence = services.presence
        self._session_log = services.session_log
        context = services.context
        self._tasks = context.tasks
        self._limits = context.limits
        self._stats = context.stats
        self._clock = context.clock

    async def open(self, session: Session, request: ConnectRequest) -> None:
        try:
            if not (self._may_resume(session, request) and await self._restore(session, request)):
                await self._authenticate(session, request)
        except ServerError as error:
            logger.warning("authentication unavailable", extra={"session": session.tag, "reason": str(error)})
            session.end(closings.AUTH_ERROR)
        except Exception:
            logger.exception("opening failed", extra={"session": session.tag})
            session.end(closings.AUTH_ERROR)
        session.begin()

    async def _authenticate(self, session: Session, request: ConnectRequest) -> None:
        answer = await self._identify(session, request)
        if answer is None and self._conversation is not None:
            self._heartbeat.add(session)  # without pings the client would reconnect during the call
            await self._conversation.connect(session, request)
            return
        if not isinstance(answer, Accepted):
            answer = answer or Refused(closings.UNAUTHORIZED.reason)
            self._stats.auth_failures += 1
            logger.debug("refused", extra={"session": session.tag, "reason": answer.reason})
            session.end(closings.REFUSALS.get(answer.reason, closings.UNAUTHORIZED))
        elif session.accept(answer.ids, answer.expires_at):
            self._session_log.connected(session)
            await self._keeper.wait_stored(session)
            session.link.send(session.link.codec.welcome(session.sid, None))

    async def _identify(self, session: Session, request: ConnectRequest) -> Accepted | Refused | None:
        """Returns None if no authenticator recognises the credentials."""
        for authenticator in self._authenticators:
            answer = await authenticator.authenticate(request, session.sid)
            if answer is not None:
                return answer
        return None

    def _may_resume(self, session: Session, request: ConnectRequest) -> bool:
        return bool(request.options.former_sid) and session.extended and self._limits.sessions_ttl > 0

    async def _restore(self, session: Session, request: ConnectRequest) -> bool:
        """Returns True if the session is restored, or was ended meanwhile; False if it must be authenticated as a new one."""
        former = request.options.former_sid
        snapshot = await self._keeper.find(former)
        if snapshot is None:
            self._stats.restores_missed += 1
            return False
        standing = await self._check_resume(session, request, snapshot)
        if standing is None:
            return False
        snapshot = await self._keeper.take(former, session.sid)
        if snapshot is None:  # another connection was faster, or it was ended meanwhile
            self._stats.restores_missed += 1
            return False
        if not session.accept(snapshot.ids, standing.expires_at):
            # The client left, was disconnected, or exceeds a connection limit.
            revoked = self._table.revocations.find(session.sid, snapshot.ids) is not None
            if revoked:
                self._session_log.revoked(former, closings.REMOTE.reason)
            await self._keeper.put_back(former, session.sid, snapshot, revoked)
            return True
        if self._conversation is not None:
            session.app = self._conversation.build_app_side(request, snapshot.app)
        session.link.names = (session.sid, *snapshot.names)[:MAX_FORMER_SIDS]
        session.subscriptions = {
            name: Subscription(name, granted)
            for name, granted in snapshot.subscriptions.items()
            if len(name.encode()) <= self._limits.max_identifier
        }
        # Set before the store has moved the memberships: the session may be written or end before that.
        session.members = dict(snapshot.members) or None
        self._stats.sessions_restored += 1
        self._session_log.restored(session, former)
        session.link.send(session.link.codec.welcome(session.sid, list(session.subscriptions)))
        self._joiner.hold(session.link, session.subscriptions.values())
        await self._readmit(session, former, snapshot)
        if self._conversation is not None and session.app is not None and session.app.known:
            session.returning = self._tasks.spawn(self._conversation.restored(session, former))
        if session.subscriptions:
            asyncio.get_running_loop().call_later(self._limits.resume_timeout, self._resume_timed_out, session)
        return True

    async def _check_resume(self, session: Session, request: ConnectRequest, snapshot: SessionSnapshot) -> Accepted | None:
        """The identity and expiry of a kept session, from its own token or a newer one of the same client. None: refused."""
        if request.token:
            answer = await self._identify(session, request)
            if isinstance(answer, Refused) or (answer is not None and not answer.anonymous):
                return answer if isinstance(answer, Accepted) and answer.ids == snapshot.ids else None
        if snapshot.expires_at is not None and snapshot.expires_at <= self._clock():
            return None
        if self._conversation is not None and not await self._conversation.may_resume(session, request, snapshot):
            return None
        return Accepted(snapshot.ids, snapshot.expires_at)

    async def _readmit(self, session: Session, former: str, snapshot: SessionSnapshot) -> None:
        """Return to the presence sets: without an event within the grace period, with a join after it.

        If the former node crashed, the memberships in the store may be newer than the snapshot, and the snapshot may be from
        between the two steps of an unsubscribe. So memberships without a subscription are left.
        """
        if not snapshot.members and not self._keeper.shared:
            return
        held = await self._presence.adopt(session, former)
        session.members = {**held, **snapshot.members} or None
        subscribed = {subscription.granted.presence for subscription in session.subscriptions.values()}
        for stream, member in (session.members or {}).items():
            if stream not in subscribed:
                await self._presence.leave_stream(session, stream)
            elif not await self._presence.join_stream(session, stream, member):
                session.members = {other: held for other, held in (session.members or {}).items() if other != stream}

    def _resume_timed_out(self, session: Session) -> None:
        """Abandon unclaimed subscriptions. A busy session is checked again later: its claims may be in the inbox."""
        if session.at_work:
            pause = max(self._limits.resume_timeout, MIN_RESUME_CHECK_SECONDS)
            asyncio.get_running_loop().call_later(pause, self._resume_timed_out, session)
        else:
            self._tasks.spawn(self._abandon(session))

    async def _abandon(self, session: Session) -> None:
        for subscription in list(session.subscriptions.values()):
            if not subscription.claimed:
                await self._joiner.abandon(session.link, subscription)
